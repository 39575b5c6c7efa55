"""The containers of a structure as data, and what builds them again where a program is loaded.

A structure names the classes of its containers. Of a cache, more has to be known than its leaves:
the flags and sizes that its objects hold. They are written as tuples, ``("dtype", "float32")``,
which the codec can hold.
"""

from __future__ import annotations

import builtins
import collections
import dataclasses
import functools
import importlib
import re
import sys
import types
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..core.errors import UnsupportedError
from ..core.path import Attr, Key
from ..core.structure import Structure
from ..disk.text import damaged
from ..pytrees.layers import is_cache, is_cache_class, is_layer, is_layer_class
from ..pytrees.nodes import ATOMS, qualified_name
from ..pytrees.open import ARGUMENTS, NAMED_TUPLE
from ..pytrees.openers import size_of
from .standin import StandIn

__all__ = ["find_class", "hidden_of", "with_builders"]


# Finds the class that a file names, without running what the file could choose.
#
# A class is used when its module is imported already, or is one of :data:`LIBRARIES`; and only when
# it is of the kind that its place wants. A file that could have any module imported could run any
# code.
#: modules that are imported when a result has one of their classes: they have no code of models
LIBRARIES = ("transformers.cache_utils", "transformers.modeling_outputs")


def find_class(kind: str) -> type | None:
    """The class of a qualified name, from a module that is there; None where there is none."""
    parts = kind.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        name = ".".join(parts[:cut])
        if name not in sys.modules and name in LIBRARIES:
            _import(name)
        module = sys.modules.get(name)
        if module is not None:
            return _inside(module, parts[cut:])
    return None


def _import(name: str) -> None:
    try:
        importlib.import_module(name)
    except Exception:  # not installed, or broken: a stand-in serves
        return


def _inside(found: Any, names: list[str]) -> type | None:
    """Follows the names by plain attributes, and computes none."""
    for name in names:
        found = getattr(found, "__dict__", {}).get(name)
    return found if isinstance(found, type) else None


def find_output(kind: str) -> Any:
    """A ``ModelOutput`` of transformers."""
    cls = find_class(kind)
    if cls is None or not issubclass(cls, OrderedDict):
        return None
    bases = {(base.__module__, base.__name__) for base in cls.__mro__}
    return cls if ("transformers.utils.generic", "ModelOutput") in bases else None


def find_cache(kind: str) -> Any:
    """A cache of transformers, or a layer of one."""
    cls = find_class(kind)
    return cls if cls is not None and (is_cache_class(cls) or is_layer_class(cls)) else None


def find_named_tuple(kind: str, names: tuple[str, ...]) -> Any:
    """A named tuple with these fields."""
    cls = find_class(kind)
    return (
        cls
        if cls is not None and issubclass(cls, tuple) and getattr(cls, "_fields", None) == names
        else None
    )


def find_named_result(kind: str) -> Any:
    """A named result of torch, as ``topk`` gives it."""
    cls = find_class(kind) if kind.startswith("torch.return_types.") else None
    return cls if cls is not None and issubclass(cls, tuple) else None


def find_record(kind: str, names: tuple[str, ...]) -> Any:
    """A dataclass that has these fields."""
    cls = find_class(kind)
    if cls is None or not dataclasses.is_dataclass(cls):
        return None
    return cls if set(names) <= {f.name for f in dataclasses.fields(cls)} else None


_BUILTIN: dict[str, Any] = {
    "list": list,
    "tuple": tuple,
    "dict": dict,
    "OrderedDict": collections.OrderedDict,
    "torch.Size": size_of,
    "slice": lambda values: slice(*values),
}
#: the factory of a defaultdict, in the context that torch gives for one
_FACTORY = re.compile(r"list\(builtins\.(bool|dict|float|int|list|set|str|tuple), ")
#: those that are built of their children alone, without keys
_SEQUENCES = frozenset({"list", "tuple", "torch.Size", "slice"})


def hidden_of(structure: Structure) -> tuple[Any, ...]:
    """Returns the values that each container holds beside its children, in the order of a walk;
    None for most.

    :raises UnsupportedError: ``not-saved`` for a cache that holds an object, a configuration for
        instance
    """
    return tuple(_hidden(node) for node in _nodes(structure))


def _nodes(structure: Structure) -> Iterator[Structure]:
    yield structure
    for child in structure.children:
        yield from _nodes(child)


def _hidden(node: Structure) -> Any:
    if isinstance(node.extra, _Builder):
        return node.extra.hidden
    if (
        node.kind in _BUILTIN
        or node.is_leaf
        or not callable(node.extra)
        or find_cache(node.kind) is None
    ):
        return None
    made = node.extra([None] * len(node.children))
    if not (is_cache(made) or is_layer(made)):
        return None
    shown = {entry.name for entry in node.entries if isinstance(entry, Attr)}
    return tuple(
        (name, _written(value, node.kind))
        for name, value in vars(made).items()
        if name not in shown
    )


def _written(value: Any, kind: str) -> Any:
    if isinstance(value, ATOMS[:5]):
        return ("constant", value)
    if isinstance(value, (torch.dtype, torch.device)):
        return (type(value).__name__, str(value).removeprefix("torch."))
    if isinstance(value, type):
        return ("class", qualified_name(value))
    if type(value) is dict:
        return ("dict", tuple((_written(k, kind), _written(v, kind)) for k, v in value.items()))
    if type(value) in (list, tuple):
        return (type(value).__name__, tuple(_written(child, kind) for child in value))
    if type(value) is torch.Tensor and value.numel() == 1 and not value.is_complex():
        return ("tensor", (str(value.dtype).removeprefix("torch."), value.ndim, value.item()))
    raise UnsupportedError(
        f"A {kind} holds a {qualified_name(type(value))}, which cannot be written into a file.",
        slug="not-saved",
        hint="Keep the program in memory, or pass a cache without it.",
    )


def with_builders(structure: Structure, hidden: Any, where: str) -> Structure:
    """The structure with what builds its containers, so that results can be closed.

    :raises SavedFileError: ``file-damaged``
    """
    rows = iter(hidden if isinstance(hidden, tuple) else ())
    found = _with_builders(structure, rows, where)
    if next(rows, damaged) is not damaged:
        raise damaged(where, "it says more of its containers than there are")
    return found


def _with_builders(node: Structure, rows: Iterator[Any], where: str) -> Structure:
    row = next(rows, damaged)
    if row is damaged:
        raise damaged(where, "it says less of its containers than there are")
    children = tuple(_with_builders(child, rows, where) for child in node.children)
    if node.is_leaf or node.kind == ARGUMENTS:
        return replace(node, children=children)
    hidden = (
        None if row is None else {name: _read(value, where) for name, value in _pairs(row, where)}
    )
    return replace(node, children=children, extra=_Builder(node, row, hidden))


def _pairs(row: Any, where: str) -> list[tuple[str, Any]]:
    if isinstance(row, tuple) and all(
        isinstance(p, tuple) and len(p) == 2 and isinstance(p[0], str) for p in row
    ):
        return list(row)
    raise damaged(where, "the attributes of a cache are wanted here")


def _read(written: Any, where: str) -> Any:
    """An attribute, checked as it is read; a class is looked for when a cache is built."""
    match written:
        case ("constant", bool() | int() | float() | str() | None as value):
            return value
        case ("dtype", str(name)) if isinstance(vars(torch).get(name), torch.dtype):
            return vars(torch)[name]
        case ("device", str(name)):
            return _device(name, where)
        case ("class", str(name)):
            return _Class(name)
        case ("dict", tuple(pairs)) if all(isinstance(p, tuple) and len(p) == 2 for p in pairs):
            return _dict([(_read(k, where), _read(v, where)) for k, v in pairs], where)
        case ("list" | "tuple" as kind, tuple(children)):
            return _BUILTIN[kind](_read(child, where) for child in children)
        case ("tensor", (str(name), int(rank), bool() | int() | float() as value)) if (
            0 <= rank <= 8
        ):
            dtype = vars(torch).get(name)
            if isinstance(dtype, torch.dtype):
                return torch.tensor(value, dtype=dtype).reshape((1,) * rank)
    raise damaged(where, "an attribute of a cache is wanted here")


def _device(name: str, where: str) -> torch.device:
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise damaged(where, f"{name[:80]!r} is no device") from error


def _dict(pairs: list[tuple[Any, Any]], where: str) -> dict[Any, Any]:
    try:
        return dict(pairs)
    except TypeError as error:
        raise damaged(where, "a list is no key") from error


@dataclass(frozen=True, slots=True)
class _Class:
    kind: str


class _Builder:
    """Builds one container from its children, in its own class where this process has it.

    The class is looked for at every build until it is found: it may be imported after the program
    is loaded.
    """

    def __init__(self, node: Structure, hidden: Any, attributes: dict[str, Any] | None) -> None:
        self.kind, self.context, self.hidden, self.attributes = (
            node.kind,
            node.context,
            hidden,
            attributes,
        )
        self.keys: tuple[Any, ...] = tuple(
            getattr(e, "key" if isinstance(e, Key) else "name", n)
            for n, e in enumerate(node.entries)
        )
        self._found: Any = None

    def __call__(self, values: Sequence[Any]) -> Any:
        """The container."""
        if self._found is None:
            self._found = self._find()
        if self._found is None:
            return StandIn(self.kind, self.keys, values)
        try:
            return self._found(values)
        except (TypeError, ValueError, AttributeError) as error:
            raise damaged(
                "the saved program", f"its result makes no {self.kind} ({error})"
            ) from error

    def _find(self) -> Any:
        if self.kind in _SEQUENCES:
            return _BUILTIN[self.kind]
        if self.kind in _BUILTIN:
            return self._mapping
        result = functools.partial(find_named_result, self.kind)
        kinds = (self._cache, self._named_tuple, self._output, self._record)
        for find in (result, self._collection, *kinds):
            found = find()
            if found is not None:
                return found
        return None

    def _mapping(self, values: Sequence[Any]) -> Any:
        return _BUILTIN[self.kind](zip(self.keys, values, strict=True))

    def _collection(self) -> Any:
        """Returns a function that builds a collection of Python with what its context says: the greatest length of a
        deque, the factory of a defaultdict.
        """
        if self.kind == "collections.deque":
            most = int(self.context) if self.context.isdecimal() else None
            return lambda values: collections.deque(values, most)
        if self.kind == "collections.defaultdict":
            found = _FACTORY.match(self.context)
            factory = getattr(builtins, found[1]) if found else None
            return lambda values: collections.defaultdict(
                factory, zip(self.keys, values, strict=True)
            )
        if self.kind == "types.SimpleNamespace":
            return lambda values: types.SimpleNamespace(**dict(zip(self.keys, values, strict=True)))
        return None

    def _cache(self) -> Any:
        cls = find_cache(self.kind) if self.attributes is not None else None
        return None if cls is None else lambda values: self._built(cls, values)

    def _built(self, cls: type, values: Sequence[Any]) -> Any:
        made: Any = object.__new__(cls)
        made.__dict__.update(
            {name: _copied(value) for name, value in (self.attributes or {}).items()}
        )
        made.__dict__.update(zip(self.keys, values, strict=True))
        return made

    def _named_tuple(self) -> Any:
        if self.context != NAMED_TUPLE:
            return None
        cls: Any = find_named_tuple(self.kind, self.keys)
        if cls is None:
            make: Any = collections.namedtuple
            cls = make("StandIn", self.keys, rename=True)
        return lambda values: tuple.__new__(cls, values)

    def _output(self) -> Any:
        cls = find_output(self.kind)
        return (
            None if cls is None else lambda values: cls(**dict(zip(self.keys, values, strict=True)))
        )

    def _record(self) -> Any:
        cls = find_record(self.kind, self.keys)
        return (
            None
            if cls is None
            else lambda values: _recorded(cls, dict(zip(self.keys, values, strict=True)))
        )


def _copied(value: Any) -> Any:
    """An attribute for one object: what a model changes in place is not shared."""
    if isinstance(value, _Class):
        return find_cache(value.kind)
    return type(value)(value) if type(value) in (dict, list) else value


def _recorded(cls: type, fields: dict[str, Any]) -> Any:
    made: Any = object.__new__(cls)
    for name, value in fields.items():
        object.__setattr__(made, name, value)
    return made
