"""Opens values again that have the structure of one opened before, at a fraction of the cost.

:func:`onlooker.pytrees.open.open_tree` finds out what a container is. A :class:`Layout` is compiled
from one such finding: it reads the leaves of another value and makes sure that opening it would
give the same structure. Where it is not sure it says no, and the value is to be opened.
:func:`closer_of` does the same for building values.
"""

from __future__ import annotations

import copy
import operator
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from ..core.path import Attr
from ..core.structure import Structure
from .layers import FOLLOWING, is_cache, is_layer
from .nodes import ATOMS, is_plain
from .open import close_tree, is_model_output, open_tree

__all__ = ["Layout", "closer_of"]

#: appends the leaves of a value, and says whether it has the structure
Reader = Callable[[Any, list[Any]], bool]
_ATOMS = frozenset(ATOMS)


class Layout:
    """Reads the leaves of arguments of one structure, that of ``values``."""

    def __init__(self, values: Sequence[Any], structures: Sequence[Structure]) -> None:
        self._readers = [
            _reader(value, structure) for value, structure in zip(values, structures, strict=True)
        ]

    def read(self, values: Sequence[Any]) -> list[Any] | None:
        """The leaves in their order, or None when the values are, or might be, of another
        structure.
        """
        leaves: list[Any] = []
        try:
            for reader, value in zip(self._readers, values, strict=True):
                if not reader(value, leaves):
                    return None
        except (AttributeError, KeyError, RuntimeError):
            return None
        return leaves


def closer_of(structure: Structure) -> Callable[[Sequence[Any]], Any]:
    """A function that does for leaves in a list what :func:`~onlooker.pytrees.open.close_tree`
    does.

    >>> from onlooker.pytrees.open import open_tree
    >>> closer_of(open_tree({"a": (1, 2)}).structure)(["x", "y"])
    {'a': ('x', 'y')}
    """
    return _closer(structure, 0)


def _closer(structure: Structure, start: int) -> Callable[[Sequence[Any]], Any]:
    """Builds the structure from the leaves beginning at a position."""
    build: Any = structure.extra
    stop = start + structure.n_leaves
    if structure.is_leaf:
        return operator.itemgetter(start)
    if build is None:
        return lambda leaves: close_tree(structure, leaves[start:stop])
    if all(child.is_leaf for child in structure.children):
        return lambda leaves: build(leaves[start:stop])
    parts = []
    for child in structure.children:
        parts.append(_closer(child, start))
        start += child.n_leaves
    return lambda leaves: build([part(leaves) for part in parts])


def _reader(value: Any, structure: Structure) -> Reader:
    cls = type(value)
    if structure.is_leaf:
        return _leaf_reader(value)
    if cls in (list, tuple):
        return _sequence_reader(cls, _readers(value, structure))
    if cls in (dict, OrderedDict) or is_model_output(value):
        return _mapping_reader(cls, tuple(value), _readers(dict.values(value), structure))
    if is_cache(value) or is_layer(value):
        return _object_reader(value, structure)
    return _opener(structure)


def _readers(values: Any, structure: Structure) -> list[Reader]:
    return [_reader(value, child) for value, child in zip(values, structure.children, strict=True)]


def _leaf_reader(value: Any) -> Reader:
    if isinstance(value, torch.Tensor):
        return _tensor
    cls = type(value)
    if cls not in _ATOMS:
        return _opener(Structure())

    def read(value: Any, leaves: list[Any]) -> bool:
        leaves.append(value)
        return type(value) is cls

    return read


def _tensor(value: Any, leaves: list[Any]) -> bool:
    leaves.append(value)
    return isinstance(value, torch.Tensor)


def _opener(structure: Structure) -> Reader:
    """For any other container: it is opened anew, and compared."""

    def read(value: Any, leaves: list[Any]) -> bool:
        tree = open_tree(value)
        leaves += tree.leaves
        return tree.structure == structure

    return read


def _sequence_reader(cls: type[Any], readers: list[Reader]) -> Reader:
    count = len(readers)

    def read(value: Any, leaves: list[Any]) -> bool:
        return type(value) is cls and len(value) == count and _all_read(readers, value, leaves)

    return read


def _mapping_reader(cls: type[Any], keys: tuple[Any, ...], readers: list[Reader]) -> Reader:
    def read(value: Any, leaves: list[Any]) -> bool:
        return (
            type(value) is cls
            and tuple(value) == keys
            and _all_read(readers, dict.values(value), leaves)
        )

    return read


def _object_reader(value: Any, structure: Structure) -> Reader:
    """For a cache or a layer: what it shows is read, what it hides must be as it was."""
    cls, attributes = type(value), vars(value)
    count = len(attributes)
    shown = [entry.name for entry in structure.entries if isinstance(entry, Attr)]
    readers = _readers([attributes[name] for name in shown], structure)
    tensors = tuple(
        name
        for name, child in attributes.items()
        if name not in shown and isinstance(child, torch.Tensor)
    )
    compared = {n: c for n, c in attributes.items() if n not in (*shown, *tensors, *FOLLOWING)}
    flags = {name: copy.deepcopy(child) for name, child in compared.items() if is_plain(child)}
    objects = {name: child for name, child in compared.items() if not is_plain(child)}
    read_flags, read_shown = _getter(flags), _getter(shown)
    expected = tuple(flags.values())
    only_tensors = all(reader is _tensor for reader in readers)

    def read(value: Any, leaves: list[Any]) -> bool:
        if type(value) is not cls:
            return False
        own = value.__dict__
        if len(own) != count or read_flags(own) != expected:
            return False
        if tensors and not all(isinstance(own[name], torch.Tensor) for name in tensors):
            return False
        if objects and not all(own[name] is held for name, held in objects.items()):
            return False
        children = read_shown(own)
        if only_tensors:
            leaves += children
            for child in children:  # noqa: SIM110  # as in _all_read
                if not isinstance(child, torch.Tensor):
                    return False
            return True
        return _all_read(readers, children, leaves)

    return read


def _all_read(readers: Sequence[Reader], values: Iterable[Any], leaves: list[Any]) -> bool:
    for reader, value in zip(readers, values, strict=True):  # noqa: SIM110  # a generator costs more per item
        if not reader(value, leaves):
            return False
    return True


def _getter(names: Iterable[str]) -> Callable[[dict[str, Any]], tuple[Any, ...]]:
    """Reads several items of a dict as a tuple."""
    wanted = tuple(names)
    if len(wanted) > 1:
        getter: Callable[[dict[str, Any]], tuple[Any, ...]] = operator.itemgetter(*wanted)
        return getter
    return lambda items: tuple([items[name] for name in wanted])
