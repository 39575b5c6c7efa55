"""Does a model read the order of a dict among its arguments, or of what ``**kwargs`` takes?

The model runs once with dicts that note whether anything asks for their order: iteration, ``values``,
``**``. Within a region of sizes the Python of a model takes one path, so a path on which nothing asks
is the same for any order. ``**kwargs`` of the method itself is a dict that Python makes: its order is
free where the source of the method only looks items up by name.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..core.call import Signature
from ..core.structure import Structure
from ..pytrees.open import ARGUMENTS

__all__ = ["DICTS", "has_order", "holds_noting", "looks_up_only", "noting_order", "of_var_keyword"]

#: the kinds of containers whose items have an order that a call chooses
DICTS = frozenset({"dict", "OrderedDict"})
_READERS = ("__iter__", "__reversed__", "keys", "values", "items", "popitem", "copy", "__or__")
_LOOKS = frozenset({"get", "pop", "setdefault"})


def has_order(structure: Structure) -> bool:
    """True for a dict with two items or more, and for what holds one."""
    is_ordered = structure.kind in DICTS and len(structure.entries) > 1
    return is_ordered or any(map(has_order, structure.children))


def of_var_keyword(structure: Structure, signature: Signature) -> list[str]:
    """The names of arguments that ``**kwargs`` takes, in their order."""
    if structure.kind != ARGUMENTS:
        return []
    return [entry.code() for entry in structure.entries if signature.get(entry.code()) is None]


def noting_order(value: Any, note: Callable[[], None]) -> Any:
    """The arguments with dicts that call ``note`` when their order is asked for."""
    if type(value) in (dict, OrderedDict):
        made = _noting(type(value), note)()
        for key, item in value.items():
            dict.__setitem__(made, key, noting_order(item, note))
        return made
    if type(value) in (list, tuple):
        return type(value)(noting_order(item, note) for item in value)
    return value


def _noting(base: type, note: Callable[[], None]) -> Any:
    def reader(name: str) -> Callable[..., Any]:
        of_dict = getattr(dict, name)

        def read(self: Any, *args: Any) -> Any:
            note()
            return of_dict(self, *args)

        return read

    return type(base.__name__, (dict, _NotingDict), {name: reader(name) for name in _READERS})


class _NotingDict:
    """The class of dicts that note who asks for their order."""


def holds_noting(result: Any) -> bool:
    """True where a result has a dict of the call with two items or more, in the order of the call."""
    if isinstance(result, _NotingDict):
        return len(result) > 1 or any(map(holds_noting, dict.values(result)))  # type: ignore[arg-type]
    if isinstance(result, dict):
        return any(map(holds_noting, result.values()))
    return type(result) in (list, tuple) and any(map(holds_noting, result))


def looks_up_only(method: Any) -> bool:
    """True where the source of a method only looks items of its ``**kwargs`` up by name."""
    try:
        source = textwrap.dedent(inspect.getsource(inspect.unwrap(method)))
        (function,) = ast.parse(source).body
    except (OSError, TypeError, SyntaxError, ValueError):
        return False
    if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return False
    if function.args.kwarg is None:
        return True
    return _n_reads(function, function.args.kwarg.arg) == _n_lookups(
        function, function.args.kwarg.arg
    )


def _n_reads(function: ast.AST, name: str) -> int:
    return sum(isinstance(node, ast.Name) and node.id == name for node in ast.walk(function))


def _n_lookups(function: ast.AST, name: str) -> int:
    return sum(_is_lookup(node, name) for node in ast.walk(function))


def _is_lookup(node: ast.AST, name: str) -> bool:
    def is_it(value: ast.AST) -> bool:
        return isinstance(value, ast.Name) and value.id == name

    if isinstance(node, ast.Subscript):
        return is_it(node.value)
    if isinstance(node, ast.Attribute):
        return is_it(node.value) and node.attr in _LOOKS
    is_in = isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn))
    return is_in and is_it(node.comparators[0])  # type: ignore[attr-defined]


def orders_differ(planned: Structure, given: Structure) -> Iterator[Sequence[Any]]:
    """Each dict whose items stand in another order in a call than in the plan."""
    if planned.kind in DICTS and given.kind in DICTS:
        shared = [entry for entry in planned.entries if entry in given.entries]
        came = [entry for entry in given.entries if entry in planned.entries]
        if shared != came:
            yield came
    known = dict(planned.parts)
    for entry, child in given.parts:
        if entry in known:
            yield from orders_differ(known[entry], child)
