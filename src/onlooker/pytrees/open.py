"""Opens any Python value down to its leaves, and closes it again, without a global registration.

A leaf is a tensor, a bool, int, float, str or None, or an object that could not be opened.
Containers are, in this order: lists, tuples and dicts; the caches of transformers
(:mod:`onlooker.pytrees.layers`); classes that somebody registered with ``torch.utils._pytree``;
modules that hold a tensor (:mod:`onlooker.pytrees.modules`); ``ModelOutput`` and dataclasses; plain
objects that hold a tensor somewhere. Closing creates no tensor, so that it can be done while torch
traces a model: an empty tensor made there would become a constant of the program (and break its
conversion to ONNX).
"""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from ..core.errors import ObservationError
from ..core.path import Attr, Entry, Name, Path
from ..core.spec import ConstantSpec, OpaqueSpec, Spec, TensorSpec
from ..core.structure import LEAF, Structure, Tree
from .identity import identity_of
from .nodes import ATOMS, Opened, qualified_name
from .openers import NAMED_TUPLE, is_leaf, is_model_output, take_apart

__all__ = [
    "ARGUMENTS",
    "NAMED_TUPLE",
    "NESTED",
    "close_tree",
    "copy_tensors",
    "dtype_of",
    "is_leaf",
    "is_model_output",
    "map_tensors",
    "open_arguments",
    "open_tree",
    "opened_call",
    "opened_result",
    "spec_of",
    "take_apart",
]

#: the kind of the structure that holds the arguments of a call by name
ARGUMENTS = "arguments"
#: the kind of a tensor whose rows have lengths of their own
NESTED = "nested tensor"
#: the kind of what refers to an object above it; its context says how many levels above
ABOVE = "above"
_DEEPEST = 24
_LEAF = Structure(LEAF)
_PLAIN_LEAVES = frozenset({torch.Tensor, torch.nn.Parameter, *ATOMS})


def dtype_of(name: str) -> torch.dtype:
    """The dtype that torch prints as ``name``."""
    dtype: torch.dtype = getattr(torch, name.removeprefix("torch."))
    return dtype


def spec_of(leaf: Any, *, identified: bool = True) -> Spec:
    """The spec of a leaf; a nested tensor, or a parameter that is not initialised, has no sizes to
    tell.

    An object that could not be opened is told from others, unless not ``identified``: results are
    compared themselves.
    """
    if isinstance(leaf, torch.Tensor) and not leaf.is_nested and not is_lazy(leaf):
        return TensorSpec(tuple(leaf.shape), str(leaf.dtype), str(leaf.device))
    if isinstance(leaf, (bool, int, float, str, type(None))):
        return ConstantSpec(leaf)
    if isinstance(leaf, torch.Tensor) and leaf.is_nested:
        return OpaqueSpec(NESTED)
    if isinstance(leaf, OpaqueSpec):  # stands for an object of a recorded call
        return leaf
    kind = qualified_name(type(leaf))
    return OpaqueSpec(kind, identity_of(leaf)) if identified else OpaqueSpec(kind)


def open_tree(value: Any) -> Tree[Any]:
    """Opens ``value`` down to its leaves.

    >>> tree = open_tree({"a": [torch.zeros(2), 3]})
    >>> [path.code() for path in tree.structure.paths()]
    ["['a'][0]", "['a'][1]"]
    """
    opening = _Opening()
    return Tree(opening.open(value), tuple(opening.leaves))


def open_arguments(arguments: dict[str, Any]) -> Tree[Any]:
    """Opens the arguments of a call: every path begins with a name.

    >>> open_arguments({"x": torch.zeros(2), "flags": [True]}).structure.n_leaves
    2
    """
    opening = _Opening()
    children = tuple(opening.open(value) for value in arguments.values())
    names = tuple(Name(name) for name in arguments)
    return Tree(Structure(ARGUMENTS, names, children), tuple(opening.leaves))


def opened_call(
    names: Sequence[str], values: Sequence[Any]
) -> tuple[Tree[Any], Sequence[Structure]]:
    """The arguments of a call, and the structure of each of them.

    >>> tree, parts = opened_call(["x", "flags"], [torch.zeros(2), [True, False]])
    >>> [part.n_leaves for part in parts]
    [1, 2]
    """
    tree = open_arguments(dict(zip(names, values, strict=True)))
    return tree, tree.structure.children


def opened_result(result: Any) -> tuple[Tree[Any], Sequence[Structure]]:
    """The result of a call, and its structure."""
    tree = open_tree(result)
    return tree, (tree.structure,)


def close_tree(structure: Structure, leaves: Sequence[Any]) -> Any:
    """Builds the value again that :func:`open_tree` opened, from other leaves.

    >>> close_tree(open_tree((1, [2])).structure, ["a", "b"])
    ('a', ['b'])
    """
    iterator = iter(leaves)
    return _close(structure, iterator)


def map_tensors(function: Callable[[torch.Tensor], Any], value: Any) -> Any:
    """``value`` with ``function`` applied to each of its tensors; everything else is kept.

    >>> map_tensors(lambda t: t + 1, [torch.zeros(1), "a"])
    [tensor([1.]), 'a']
    """
    tree = open_tree(value)
    memo: dict[int, Any] = {}
    for leaf in tree.leaves:
        if isinstance(leaf, torch.Tensor) and id(leaf) not in memo:
            memo[id(leaf)] = function(leaf)
    return close_tree(tree.structure, [memo.get(id(leaf), leaf) for leaf in tree.leaves])


def copy_tensors(value: Any) -> Any:
    """``value`` with a copy of each of its tensors, which records no gradient; everything else is
    kept, and containers are built anew.

    >>> given = {"x": torch.zeros(1), "name": "a"}
    >>> copied = copy_tensors(given)
    >>> copied["x"] is given["x"], copied["name"] is given["name"]
    (False, True)
    """
    return map_tensors(lambda tensor: tensor.detach().clone(), value)


class _Opening:
    """One value on its way down to the leaves.

    An attribute that refers back to an object above it (``child.parent``, also by a weak reference)
    is no leaf: it would be the object of the watched call for ever. Closing sets it to the object
    that was built.
    """

    def __init__(self) -> None:
        self.leaves: list[Any] = []
        self._above: list[int] = []
        self._entries: list[Entry] = []
        self._backs: list[list[_Back]] = []

    def open(self, value: Any) -> Structure:
        """The structure of a value, whose leaves are added."""
        opened = None if type(value) in _PLAIN_LEAVES else self._taken_apart(value)
        if opened is None:
            self.leaves.append(value)
            return _LEAF
        depth, start = len(self._above), len(self._entries)
        self._above.append(id(value))
        self._backs.append([])
        children = []
        for entry, child in opened.children:
            self._entries.append(entry)
            children.append(self._child(entry, child))
            self._entries.pop()
        self._above.pop()
        backs = [replace(back, entries=back.entries[start:]) for back in self._backs.pop(depth)]
        build = _pointed(opened.build, backs) if backs else opened.build
        entries = tuple(entry for entry, _ in opened.children)
        return Structure(opened.kind, entries, tuple(children), opened.context, build)

    def _taken_apart(self, value: Any) -> Opened | None:
        if is_leaf(value) and not isinstance(value, torch.nn.Module):
            return None
        if len(self._above) >= _DEEPEST or id(value) in self._above:
            return None
        return take_apart(value)

    def _child(self, entry: Entry, child: Any) -> Structure:
        is_weak = isinstance(child, weakref.ref)
        target = child() if is_weak else child
        if not isinstance(entry, Attr) or id(target) not in self._above:
            return self.open(child)
        level = self._above.index(id(target))
        self._backs[level].append(_Back(tuple(self._entries), is_weak))
        return Structure(ABOVE, context=str(len(self._above) - level), extra=lambda _: None)


@dataclasses.dataclass(frozen=True, slots=True)
class _Back:
    """An attribute that refers to an object above it: the way down to it, and whether the
    reference is weak.
    """

    entries: tuple[Entry, ...]
    is_weak: bool


def _pointed(
    build: Callable[[list[Any]], Any], backs: Sequence[_Back]
) -> Callable[[list[Any]], Any]:
    def built(values: list[Any]) -> Any:
        made = build(values)
        for back in backs:
            *way, last = back.entries
            with contextlib.suppress(
                AttributeError, LookupError, TypeError
            ):  # built from what is no child of it
                holder = Path(tuple(way)).follow(made)
                object.__setattr__(
                    holder, getattr(last, "name", ""), weakref.ref(made) if back.is_weak else made
                )
        return made

    return built


def _close(structure: Structure, leaves: Iterator[Any]) -> Any:
    if structure.is_leaf:
        return next(leaves)
    values = [_close(child, leaves) for child in structure.children]
    if structure.kind == ARGUMENTS:
        return {entry.code(): value for entry, value in zip(structure.entries, values, strict=True)}
    build: Any = structure.extra
    if build is None:
        raise ObservationError(
            f"A {structure.kind} cannot be built: this structure was read from a file.",
            slug="structure-without-class",
            hint="Watch the model again in this process.",
        )
    return build(values)
