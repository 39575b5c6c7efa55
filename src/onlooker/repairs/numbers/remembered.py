"""Functions that remember their results are computed for a size, as they are for a size that is new.

    @functools.lru_cache
    def mask(length):
        return torch.ones(length, length).tril()

A cache wants a number for ``length``, and a graph would hold for the one of its example. What a cache
gives is what the function gives, as long as nobody writes to it: so in a trace the function itself is
called, where a size is among its arguments.

This is right for a function that draws no random numbers, writes to nothing that it did not make, and
gives tensors, numbers, and tuples, lists and dicts of them, to which nothing writes later. Otherwise the size becomes a
number, as in :mod:`.size_functions`.

The same holds for a dict of the model that its calls fill for sizes::

    if length not in self.masks:
        self.masks[length] = torch.ones(length, length).tril()

In a trace it has a key for the size itself. Each size that it is asked for has to be put there later in the trace, and
the value has to hang on the key alone, and on weights. Numbers that the dict had before the model was watched are
compared with the size.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.fx import Node

from ...observing.cached_functions import Cache, named_caches
from ...observing.effects import MISSING
from ...observing.module_state import Contents, put_values, values_at
from ...proofs.operators import draws
from ...pytrees.nodes import SYMBOLIC
from ...torch_internals.graph_modules import nodes_reached
from ...torch_internals.sizes import expression_of
from ...torch_internals.trees import tree_leaves
from ..live_part import LivePart, is_written, node_of, nodes_of_trace
from ..repair import Attempt, Repair, Retry
from ..trace_mode import InVainError, Reader

__all__ = ["REMEMBERED", "Remembered", "TablesOfSizes"]

#: that a function is computed hangs on nothing
_ALWAYS = torch.ones(())
#: as many keys as few tables hold before they are emptied
_MANY = 2048
#: what no write but one to a tensor changes
_CONSTANT = (torch.Tensor, int, float, bool, str, type(None), torch.SymInt, torch.SymFloat)


class NotComputedError(InVainError):
    """A function is asked as its cache is."""

    words = "{line} is remembered for each size: {reason}"


class Remembered(Reader):
    """Inside the block the functions of the source of a model that remember results are computed for
    sizes, and ``tables`` of the model are asked for sizes.

    ``read(name)`` is called where a function remembers values of one of the ``inputs``: the caller may pass
    the same tensor again, with other values in it.
    """

    functions = frozenset[Any]()

    def __init__(
        self,
        model: Any,
        tables: TablesOfSizes,
        inputs: Iterable[Any] = (),
        read: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._model, self._tables = model, tables
        self._inputs, self._read = list(inputs), read
        self._made: list[tuple[str, LivePart, Any, Any, list[Node]]] = []
        self._swaps = contextlib.ExitStack()

    def __enter__(self) -> Any:
        self._tables.told = self._refuse
        self._swaps.enter_context(named_caches(self._model, self._computing))
        self._swaps.enter_context(self._tables)
        return self

    def __exit__(self, *error: Any) -> None:
        self._swaps.close()

    def _computing(self, cache: Cache) -> Callable[..., Any]:
        function = cache.__wrapped__

        @functools.wraps(function)
        def compute(*args: Any, **kwargs: Any) -> Any:
            given = tree_leaves((args, kwargs))
            if any(leaf is one for leaf in given for one in self._inputs):
                result = function(*args, **kwargs)
                if _holds_inputs(_nodes_in(result), self._tables.model):
                    self._read(f"what {function.__qualname__}() remembers of a tensor")
                return result
            if not any(isinstance(leaf, torch.SymInt) for leaf in given):
                return cache(*args, **kwargs)
            part = LivePart(_ALWAYS)
            result = function(*args, **kwargs)
            part.close()
            nodes = _nodes_in(result)
            self._made.append((function.__qualname__, part, result, _content(result), nodes))
            return result

        for name in ("cache_info", "cache_clear", "cache_parameters"):
            setattr(compute, name, getattr(cache, name))
        return compute

    def check(self) -> None:
        """Passes where nothing tells these results from those that were remembered.

        :raises NotComputedError: elsewhere
        """
        for name, part, result, content, nodes in self._made:
            why = part.seen_outside((), nodes_of_trace())
            if content != _content(result):
                why = "it gives what may change"
            if is_written(nodes, but_by=part.nodes):
                why = "its result is written to"
            if why:
                raise self.failed(NotComputedError(name, why))
        for path, why in self._tables.reasons():
            self._refuse(path, why)

    def _refuse(self, path: str, why: str) -> None:
        raise self.failed(NotComputedError(path, why))


def _nodes_in(result: Any) -> list[Node]:
    """The nodes of the tensors in a result."""
    return [node for node in map(node_of, tree_leaves(result)) if node is not None]


def _holds_inputs(nodes: Iterable[Node], model: Any) -> bool:
    """True where one of some nodes is computed from values of a tensor that is no weight of the model."""
    weights = _weights_of(model)
    return any(_is_input(node, weights) for node in nodes_reached(nodes, _tensors_before))


def _is_input(node: Node, weights: set[Node]) -> bool:
    is_tensor = isinstance(node.meta.get("val"), torch.Tensor)
    return node.op == "placeholder" and is_tensor and node not in weights


def _weights_of(model: Any) -> set[Node]:
    """The nodes of the weights of a model."""
    is_module = isinstance(model, torch.nn.Module)
    held = (*model.parameters(), *model.buffers()) if is_module else ()
    return {node for node in map(node_of, held) if node is not None}


def _content(value: Any) -> Any:
    """A value by its parts, so that a write to a list or a dict shows; a part that another write may
    change is never equal.
    """
    if type(value) is dict:
        value = tuple(value.items())
    if type(value) in (tuple, list):
        return [_content(part) for part in value]
    return id(value) if isinstance(value, _CONSTANT) else object()


# ---------------------------------------------------------------------------------- tables of a model


class TablesOfSizes:
    """Inside the block the dicts of a model that watched calls filled for sizes have keys for symbolic sizes;
    ``former`` has what they held before the model was watched. ``full`` ones have many keys beside, that stand
    for the sizes of many calls before this one.
    """

    def __init__(self, model: Any, former: Mapping[str, Any], *, full: bool = False) -> None:
        self.model, self._is_full = model, full
        #: what is told of a table that is asked in another way than for sizes, and how
        self.told: Callable[[str, str], None] = lambda path, why: None
        self._paths = [path for path, held in former.items() if _has_sizes_as_keys(held)]
        self._held: dict[str, Any] = {}
        self._tables: dict[str, _Table] = {}

    @property
    def is_empty(self) -> bool:
        """True where calls filled no such table."""
        return not self._paths

    def __enter__(self) -> TablesOfSizes:
        found = values_at(self.model, self._paths)
        self._held = {path: table for path, table in found.items() if type(table) is dict}
        # one table may have any number of names
        others = {_OfAnotherCall(): None for _ in range(_MANY if self._is_full else 0)}
        tables = {
            id(table): _Table(others | table, functools.partial(self.told, path))
            for path, table in self._held.items()
        }
        self._tables = {path: tables[id(table)] for path, table in self._held.items()}
        put_values(self.model, self._tables, self._tables)
        return self

    def __exit__(self, *error: Any) -> None:
        for path, table in self._held.items():
            held = [*dict.items(self._tables[path])]
            table.clear()
            table.update((key, value) for key, value in held if type(key) is not _OfAnotherCall)
        put_values(self.model, self._held, self._held)

    def reasons(self) -> Iterator[tuple[str, str]]:
        """Yields the tables that the trace used in another way than as memory for sizes, and why."""
        for path, table in self._tables.items():
            why = table.reason(self.model)
            if why:
                yield path, why


@dataclass(frozen=True, slots=True)
class _Entry:
    """A ``value`` for a ``key`` that has sizes, the nodes of its tensors, and those of the trace until it was put
    there.
    """

    key: Any
    value: Any
    made: tuple[Node, ...]
    nodes: frozenset[Node]

    @classmethod
    def of(cls, key: Any, value: Any) -> _Entry:
        """The entry of a value that is put there now."""
        return cls(key, value, tuple(_nodes_in(value)), frozenset(nodes_of_trace()))

    def reason(self, weights: set[Node]) -> str:
        """Returns why another call could tell the value from one that is made anew; empty where none could."""
        leaves, found = tree_leaves(self.value), self.made
        numbers = [leaf for leaf in leaves if isinstance(leaf, SYMBOLIC)]
        sizes = (size for size in tree_leaves(self.key) if isinstance(size, torch.SymInt))
        known: dict[Any, Any] = {expression_of(size): sympy.Dummy() for size in sizes}

        def hangs_on_more(number: Any) -> bool:
            expression = sympy.sympify(expression_of(number)).xreplace(known)
            return not expression.free_symbols <= {*known.values()}

        for node in nodes_reached(found, _tensors_before):
            value = node.meta.get("val")
            numbers += [value] if isinstance(value, SYMBOLIC) else getattr(value, "shape", ())
            if draws(node):
                return "it draws random numbers"
            if _is_input(node, weights):
                return "it holds values of an input"
        if any(map(hangs_on_more, filter(_is_symbolic, numbers))):
            return "it hangs on more sizes than its key has"
        return "it is written to" if is_written(found, but_by=self.nodes) else ""


def _tensors_before(node: Node) -> Iterable[Node]:
    """What a node is computed from; of a number its expression tells."""
    return () if isinstance(node.meta.get("val"), SYMBOLIC) else node.all_input_nodes


class _OfAnotherCall:
    """A key that no call asks for."""


class _Table(dict[Any, Any]):
    """A dict with keys for symbolic sizes beside those that it holds."""

    def __init__(self, held: dict[Any, Any], told: Callable[[str], None]) -> None:
        super().__init__(held)
        self._told = told
        self._sized: dict[Any, _Entry] = {}
        self._asked: set[Any] = set()
        self._method = ""

    def reason(self, model: Any) -> str:
        """Returns why the table is no memory for sizes; empty for one that is."""
        if self._method:
            return self._reason_of_method()
        if not self._asked <= self._sized.keys():
            return "nothing is put there for a size that it lacks"
        weights = _weights_of(model) if self._sized else set()
        return next(filter(None, (one.reason(weights) for one in self._sized.values())), "")

    def _reason_of_method(self) -> str:
        return f"it is asked by {self._method}()"

    def _find(self, key: Any) -> Any:
        """The value at a key, for which no sizes of the calls decide where it is one of the trace."""
        form = _form_of(key)
        if form in self._sized:
            return self._sized[form].value
        if not _has_size(key):
            found = dict.get(self, key, MISSING)
            if found is not MISSING or not self._sized:
                return found
        beside = () if not _has_size(key) else dict.items(self)
        sized = [(entry.key, entry.value) for entry in self._sized.values()]
        for other, value in (*beside, *sized):
            if type(other) is not _OfAnotherCall and key == other:
                return value
        if _has_size(key):
            self._asked.add(form)
        return MISSING

    def __contains__(self, key: Any) -> bool:
        return self._find(key) is not MISSING

    def __getitem__(self, key: Any) -> Any:
        found = self._find(key)
        if found is MISSING:
            raise KeyError(key)
        return found

    def get(self, key: Any, default: Any = None) -> Any:
        """The value at a key, or the default."""
        found = self._find(key)
        return default if found is MISSING else found

    def setdefault(self, key: Any, default: Any = None) -> Any:
        """The value at a key, where the default is put if there is none."""
        if key not in self:
            self[key] = default
        return self[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        if not _has_size(key):
            dict.__setitem__(self, key, value)
            return
        for other in dict.keys(self):
            if type(other) is not _OfAnotherCall and key == other:
                dict.__setitem__(self, other, value)
                return
        if _form_of(key) in self._sized:
            self._method = "__setitem__"  # after a write to what stands there
        self._sized[_form_of(key)] = _Entry.of(key, value)

    def clear(self) -> None:
        """Takes everything away."""
        super().clear()
        self._sized.clear()


def _watched(name: str) -> Callable[..., Any]:
    """A method of a dict that says what keys there are."""
    of_dict = getattr(dict, name)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self._sized:
            self._method = name
            self._told(self._reason_of_method())
        return of_dict(self, *args, **kwargs)

    return method


for _name in (
    "keys",
    "values",
    "items",
    "pop",
    "popitem",
    "update",
    "copy",
    "__delitem__",
    "__iter__",
    "__eq__",
    "__or__",
):
    setattr(_Table, _name, _watched(_name))


def _has_sizes_as_keys(held: Any) -> bool:
    """True for the contents of a dict that got keys with numbers alone while the model was watched."""
    if not isinstance(held, Contents) or type(held.container) is not dict:
        return False
    added = held.later.keys() - held.items.keys()
    return bool(added) and all(any(type(one) is int for one in _parts_of(key)) for key in added)


def _parts_of(key: Any) -> Iterator[Any]:
    """The parts of a key, of which some may be sizes."""
    if isinstance(key, tuple):
        for part in key:
            yield from _parts_of(part)
    else:
        yield key


def _is_symbolic(number: Any) -> bool:
    return isinstance(number, SYMBOLIC)


def _has_size(key: Any) -> bool:
    return any(map(_is_symbolic, _parts_of(key)))


def _form_of(key: Any) -> Any:
    """A key with the expressions of its sizes."""
    if isinstance(key, tuple):
        return tuple(map(_form_of, key))
    return ("size", expression_of(key)) if _is_symbolic(key) else key


def _written_later(attempt: Attempt) -> Retry | None:
    remembered = attempt.reader(Remembered)
    if remembered is None or remembered.failure is None:
        return None
    return Retry(attempt.request.without_repair(REMEMBERED), str(remembered.failure))


REMEMBERED = Repair(
    "remembered results",
    "``functools.lru_cache`` and a dict want a number for a size. A function that remembers its results is computed"
    " in a trace, where a size is among its arguments and nothing writes to what it gives; a dict that a model fills"
    " for sizes has a key for the size.",
    until="tests/repairs/test_size_functions.py::test_what_a_function_remembers_is_computed_for_other_sizes",
    link="https://docs.python.org/3/library/functools.html#functools.lru_cache",
    always=True,
    failed=_written_later,
)
