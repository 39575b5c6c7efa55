"""Opens values that are built as earlier ones were, without describing their containers again.

:func:`onlooker.pytrees.open.open_tree` finds out what a container is. Describing a cache of 16 layers
takes longer than all else that is done for a call that is watched or served. So the description of a
value is compiled into a pattern: a function that walks the next value along it, and gives its leaves
when nothing but these has changed. A pattern accepts only what would be opened into an equal structure;
what it does not know is opened anew. :func:`closer_of` does the same for building values.
"""

from __future__ import annotations

import itertools
import operator
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from ..core.path import Attr, is_same_key
from ..core.structure import Structure, Tree
from .layers import FOLLOWING, holds_tensors, is_cache, is_layer
from .nodes import ATOMS
from .open import close_tree, is_leaf, is_model_output, take_apart

__all__ = ["StructureReader", "closer_of"]

#: gives True, and the leaves to the list, when a value is built as the pattern has it
Pattern = Callable[[Any, list[Any]], bool]
#: those of several values, None for a leaf, which is read in place
Patterns = tuple[Pattern | None, ...]

_ATOMS = frozenset(ATOMS) | {torch.Tensor, torch.nn.Parameter}
_ONLY_TENSORS = {torch.Tensor}
_COMPARED = (bool, int, str, type(None), torch.dtype, torch.device, type)
#: patterns that are kept of calls with the same names of arguments, and sets of such names
_MOST_PATTERNS, _MOST_KEYS = 8, 1024


class StructureReader:
    """Opens values, along the patterns of earlier ones where they fit; structures have numbers. Threads
    may share a reader without a lock.
    """

    def __init__(self) -> None:
        self.structures: dict[int, Structure] = {}
        self._numbers: dict[Structure, int] = {}
        self._next_number = itertools.count()
        self._known: dict[Any, list[tuple[Patterns, int]]] = {}

    def open(
        self,
        key: Any,
        values: Sequence[Any],
        structure_of: Callable[[], tuple[Tree[Any], Sequence[Structure]]],
    ) -> tuple[int, Sequence[Any]]:
        """The number of the structure, and the leaves.

        ``structure_of`` opens the values where no pattern of the same ``key`` fits; it gives the
        tree, and the structure of each value.
        """
        known = self._known.get(key, [])
        for position, (patterns, number) in enumerate(known):
            leaves: list[Any] = []
            if _read(values, patterns, leaves):
                if position:
                    self._known[key] = [known[position], *known[:position], *known[position + 1 :]]
                return number, leaves
        tree, structures = structure_of()
        number = self.number(tree.structure)
        if known or len(self._known) < _MOST_KEYS:
            patterns = _patterns_of(values, structures)
            self._known[key] = [(patterns, number), *known[: _MOST_PATTERNS - 1]]
        return number, tree.leaves

    def number(self, structure: Structure) -> int:
        """The number of a structure; equal ones have the same."""
        number = self._numbers.get(structure)
        if number is None:
            number = self._numbers.setdefault(structure, next(self._next_number))
            self.structures[number] = structure
        return number


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


# ------------------------------------------------------------------------------------- patterns


def _patterns_of(values: Sequence[Any], structures: Sequence[Structure]) -> Patterns:
    return tuple(
        None if child.is_leaf else _pattern_of(value, child)
        for value, child in zip(values, structures, strict=True)
    )


def _pattern_of(value: Any, structure: Structure) -> Pattern:
    """The pattern of a container that was opened into this structure."""
    cls, children = type(value), structure.children
    if cls in (list, tuple):
        layers = _layers(value, children) if cls is list else None
        return layers or _sequence(cls, _patterns_of(value, children))
    if cls in (dict, OrderedDict) or is_model_output(value):
        keys = tuple(value)
        items = [dict.__getitem__(value, key) for key in keys]
        return _mapping(cls, keys, _patterns_of(items, children))
    opened = take_apart(value)
    if opened is None or tuple(entry for entry, _ in opened.children) != structure.entries:
        return _nothing
    items = [child for _, child in opened.children]
    patterns = _patterns_of(items, children)
    fields = _fields_of(value, structure) if is_cache(value) or is_layer(value) else None
    if fields is None:
        return _other(cls, structure, patterns)
    return _attributes(fields, items, patterns)


def _read(values: Iterable[Any], patterns: Patterns, leaves: list[Any]) -> bool:
    """True when the values are built as their patterns have it; their leaves are then added to
    ``leaves``.
    """
    for value, pattern in zip(values, patterns, strict=True):
        if pattern is not None:
            if not pattern(value, leaves):
                return False
        elif type(value) in _ATOMS or _is_leaf_still(value):
            leaves.append(value)
        else:
            return False
    return True


def _is_leaf_still(value: Any) -> bool:
    """True for a leaf; of an object that cannot be opened only the class is known."""
    is_closed = is_leaf(value) and not isinstance(value, torch.nn.Module)
    return is_closed or take_apart(value) is None


def _nothing(value: Any, leaves: list[Any]) -> bool:
    return False


def _sequence(cls: type[Any], patterns: Patterns) -> Pattern:
    def match(value: Any, leaves: list[Any]) -> bool:
        return type(value) is cls and len(value) == len(patterns) and _read(value, patterns, leaves)

    return match


def _mapping(cls: type[Any], keys: tuple[Any, ...], patterns: Patterns) -> Pattern:
    get = dict.__getitem__
    kinds = tuple(map(type, keys))
    are_texts = not set(kinds) - {str}

    def match(value: Any, leaves: list[Any]) -> bool:
        if type(value) is not cls or tuple(value) != keys or tuple(map(type, value)) != kinds:
            return False
        if not are_texts and not all(map(is_same_key, value, keys)):
            return False
        # in an OrderedDict, and so in a ModelOutput, `move_to_end` changes the order of the keys alone
        items = value.values() if cls is dict else map(partial(get, value), keys)
        return _read(items, patterns, leaves)

    return match


def _other(cls: type, structure: Structure, patterns: Patterns) -> Pattern:
    """Any other container: one level is described anew and compared."""
    kind, entries, context = structure.kind, structure.entries, structure.context

    def match(value: Any, leaves: list[Any]) -> bool:
        opened = take_apart(value) if type(value) is cls else None
        if opened is None or (opened.kind, opened.context) != (kind, context):
            return False
        if tuple(entry for entry, _ in opened.children) != entries:
            return False
        return _read([child for _, child in opened.children], patterns, leaves)

    return match


@dataclass(frozen=True)
class _Fields:
    """The fields of a cache, or of a layer of one: what is shown comes first, then what is
    ``compared``, then tensors that are hidden. ``classes`` are those of all that is not shown.
    """

    cls: type
    n_fields: int
    get: Callable[[dict[str, Any]], tuple[Any, ...]] = field(compare=False)
    names: tuple[str, ...]
    n_shown: int
    compared: tuple[Any, ...]
    classes: tuple[type, ...]
    only_tensors: bool

    def read(self, value: Any) -> tuple[Any, ...] | None:
        """Reads the leaves that are shown; None where anything else has changed."""
        if type(value) is not self.cls:
            return None
        own = value.__dict__
        if len(own) != self.n_fields:
            return None
        try:
            found = self.get(own)
        except KeyError:
            return None
        shown, hidden = found[: self.n_shown], found[self.n_shown :]
        if hidden[: len(self.compared)] != self.compared:
            return None
        return shown if tuple(map(type, hidden)) == self.classes else None


def _fields_of(value: Any, structure: Structure) -> _Fields | None:
    """None where something must be compared by what is in it."""
    own = vars(value)
    shown = [entry.name for entry in structure.entries if isinstance(entry, Attr)]
    hidden = [name for name in own if name not in shown and name not in FOLLOWING]
    tensors = [name for name in hidden if type(own[name]) is torch.Tensor]
    compared = [name for name in hidden if name not in tensors]
    names = (*shown, *compared, *tensors)
    if len(names) < 2 or not all(isinstance(own[name], _COMPARED) for name in compared):
        return None
    get = operator.itemgetter(*names)
    found = get(own)
    stop = len(shown) + len(compared)
    return _Fields(
        type(value),
        len(own),
        get,
        names,
        len(shown),
        compared=found[len(shown) : stop],
        classes=tuple(map(type, found[len(shown) :])),
        only_tensors=all(type(child) is torch.Tensor for child in found[: len(shown)]),
    )


def _attributes(fields: _Fields, children: Sequence[Any], patterns: Patterns) -> Pattern:
    """A cache or a layer of one: which attributes are shown depends on their kind, all others
    are compared.
    """
    #: what is shown stays shown: what holds tensors, a counter, the list of layers
    kinds = tuple(None if holds_tensors("", child) else type(child) for child in children)

    def match(other: Any, leaves: list[Any]) -> bool:
        shown = fields.read(other)
        if shown is None:
            return False
        for child, kind in zip(shown, kinds, strict=True):
            if not (holds_tensors("", child) if kind is None else type(child) is kind):
                return False
        return _read(shown, patterns, leaves)

    return match


def _layers(values: Sequence[Any], structures: Sequence[Structure]) -> Pattern | None:
    """The layers of a cache that are all made alike, and hold nothing but tensors; None for any
    others.
    """
    if not values or not all(map(is_layer, values)):
        return None
    fields = _fields_of(values[0], structures[0])
    if fields is None or not fields.only_tensors or len(fields.compared) < len(fields.classes):
        return None
    if any(_fields_of(*pair) != fields for pair in zip(values, structures, strict=True)):
        return None
    cls, n_fields, get, n_shown = fields.cls, fields.n_fields, fields.get, fields.n_shown
    hidden, number = fields.compared, len(values)

    def match(layers: Any, leaves: list[Any]) -> bool:
        if type(layers) is not list or len(layers) != number:
            return False
        shown: list[Any] = []
        try:
            for layer in layers:
                own = layer.__dict__
                found = get(own)
                if type(layer) is not cls or len(own) != n_fields or found[n_shown:] != hidden:
                    return False
                shown += found[:n_shown]
        except (AttributeError, KeyError):
            return False
        leaves += shown
        return set(map(type, shown)) == _ONLY_TENSORS

    return match
