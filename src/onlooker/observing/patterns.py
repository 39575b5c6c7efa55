"""Opens values that are built as earlier ones were, without describing their containers again.

Describing a cache of 16 layers takes longer than all else that is done for a call. So the
description of a value is compiled into a pattern: a function that walks the next value along it,
and gives its leaves when nothing but these has changed. A pattern accepts only what would be opened
into an equal structure; what it does not know it opens anew.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..core.path import Attr
from ..core.structure import Structure
from ..pytrees.layers import FOLLOWING, is_cache, is_layer
from ..pytrees.nodes import ATOMS
from ..pytrees.open import is_leaf, is_model_output, take_apart

__all__ = ["Pattern", "patterns_of", "read"]

#: gives True, and the leaves to the list, when a value is built as the pattern has it
Pattern = Callable[[Any, list[Any]], bool]
Test = Callable[[Any], bool]

_ATOMS = frozenset(ATOMS) | {torch.Tensor, torch.nn.Parameter}
_ONLY_TENSORS = {torch.Tensor}
_COMPARED = (bool, int, str, type(None), torch.dtype, torch.device, type)


def pattern_of(value: Any, structure: Structure) -> Pattern:
    """The pattern of a value that was opened into this structure."""
    if structure.is_leaf:
        return _leaf
    cls = type(value)
    if cls in (list, tuple):
        layers = _layers(value, structure.children) if cls is list else None
        return layers or _sequence(cls, patterns_of(list(value), structure.children))
    if cls is dict:
        return _mapping(tuple(value), patterns_of(list(value.values()), structure.children))
    if is_cache(value) or is_layer(value):
        return _attributes(value, structure)
    if is_model_output(value):
        return _model_output(
            cls,
            tuple(value),
            patterns_of([dict.__getitem__(value, key) for key in value], structure.children),
        )
    opened = take_apart(value)
    if opened is None or tuple(entry for entry, _ in opened.children) != structure.entries:
        return _nothing
    return _other(
        cls, structure, patterns_of([child for _, child in opened.children], structure.children)
    )


def patterns_of(
    values: Sequence[Any], structures: Sequence[Structure]
) -> tuple[Pattern | None, ...]:
    """The patterns of the children; None for a leaf, which is read in place."""
    return tuple(
        None if child.is_leaf else pattern_of(value, child)
        for value, child in zip(values, structures, strict=True)
    )


def read(values: Sequence[Any], patterns: tuple[Pattern | None, ...], leaves: list[Any]) -> bool:
    """True when the values are built as their patterns have it; their leaves are then added to
    ``leaves``.
    """
    for value, pattern in zip(values, patterns, strict=True):
        if pattern is not None:
            if not pattern(value, leaves):
                return False
        elif type(value) in _ATOMS:
            leaves.append(value)
        elif not _leaf(value, leaves):
            return False
    return True


def _leaf(value: Any, leaves: list[Any]) -> bool:
    """A leaf still, or again: of an object that cannot be opened only the class is known."""
    if (is_leaf(value) and not isinstance(value, torch.nn.Module)) or take_apart(value) is None:
        leaves.append(value)
        return True
    return False


def _nothing(value: Any, leaves: list[Any]) -> bool:
    return False


def _sequence(cls: type[Any], patterns: tuple[Pattern | None, ...]) -> Pattern:
    def match(value: Any, leaves: list[Any]) -> bool:
        return type(value) is cls and len(value) == len(patterns) and read(value, patterns, leaves)

    return match


def _mapping(keys: tuple[Any, ...], patterns: tuple[Pattern | None, ...]) -> Pattern:
    def match(value: Any, leaves: list[Any]) -> bool:
        return (
            type(value) is dict
            and tuple(value) == keys
            and read(list(value.values()), patterns, leaves)
        )

    return match


def _model_output(
    cls: type[Any], keys: tuple[str, ...], patterns: tuple[Pattern | None, ...]
) -> Pattern:
    get = dict.__getitem__

    def match(value: Any, leaves: list[Any]) -> bool:
        if type(value) is not cls or tuple(value) != keys:
            return False
        return read([get(value, key) for key in keys], patterns, leaves)

    return match


def _other(cls: type, structure: Structure, patterns: tuple[Pattern | None, ...]) -> Pattern:
    """Any other container: one level is described anew and compared."""
    kind, entries, context = structure.kind, structure.entries, structure.context

    def match(value: Any, leaves: list[Any]) -> bool:
        opened = take_apart(value) if type(value) is cls else None
        if opened is None or (opened.kind, opened.context) != (kind, context):
            return False
        if tuple(entry for entry, _ in opened.children) != entries:
            return False
        return read([child for _, child in opened.children], patterns, leaves)

    return match


@dataclass(frozen=True)
class _Fields:
    """What a cache, or a layer of one, is made of: what is shown comes first, all else is
    compared.
    """

    cls: type
    n_fields: int
    get: Callable[[dict[str, Any]], tuple[Any, ...]] = field(compare=False)
    names: tuple[str, ...]
    n_shown: int
    hidden: tuple[Any, ...]
    hidden_classes: tuple[type, ...]
    only_tensors: bool

    def read(self, value: Any) -> tuple[Any, ...] | None:
        """What is shown; None where anything else has changed."""
        if type(value) is not self.cls:
            return None
        own = value.__dict__
        if len(own) != self.n_fields:
            return None
        try:
            found = self.get(own)
        except KeyError:
            return None
        hidden = found[self.n_shown :]
        if hidden != self.hidden or tuple(map(type, hidden)) != self.hidden_classes:
            return None
        return found[: self.n_shown]


def _fields_of(value: Any, structure: Structure) -> _Fields | None:
    """None where something must be compared by what is in it."""
    own = vars(value)
    shown = [entry.name for entry in structure.entries if isinstance(entry, Attr)]
    hidden = [name for name in own if name not in shown and name not in FOLLOWING]
    names = (*shown, *hidden)
    if len(names) < 2 or not all(isinstance(own[name], _COMPARED) for name in hidden):
        return None
    kept = tuple(own[name] for name in hidden)
    tensors = all(type(own[name]) is torch.Tensor for name in shown)
    get = operator.itemgetter(*names)
    return _Fields(
        type(value), len(own), get, names, len(shown), kept, tuple(map(type, kept)), tensors
    )


def _attributes(value: Any, structure: Structure) -> Pattern:
    """A cache or a layer of one: which attributes are shown depends on their kind, all others
    are compared.
    """
    fields = _fields_of(value, structure)
    if fields is None:
        return _other(
            type(value), structure, patterns_of(_shown_children(value), structure.children)
        )
    children = [getattr(value, name) for name in fields.names[: fields.n_shown]]
    tests = tuple(map(_same_kind, children))
    patterns = patterns_of(children, structure.children)

    def match(other: Any, leaves: list[Any]) -> bool:
        shown = fields.read(other)
        if shown is None or not all(test(child) for test, child in zip(tests, shown, strict=True)):
            return False
        return read(shown, patterns, leaves)

    return match


def _shown_children(value: Any) -> list[Any]:
    opened = take_apart(value)
    return [] if opened is None else [child for _, child in opened.children]


def _layers(values: Sequence[Any], structures: Sequence[Structure]) -> Pattern | None:
    """The layers of a cache that are all made alike, and hold nothing but tensors; None for any
    others.
    """
    if not values or not is_layer(values[0]):
        return None
    fields = _fields_of(values[0], structures[0])
    if (
        fields is None
        or not fields.only_tensors
        or any(
            not is_layer(value) or _fields_of(value, structure) != fields
            for value, structure in zip(values, structures, strict=True)
        )
    ):
        return None
    cls, n_fields, get, n_shown, hidden = (
        fields.cls,
        fields.n_fields,
        fields.get,
        fields.n_shown,
        fields.hidden,
    )
    number = len(values)

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


def _same_kind(child: Any) -> Test:
    """What is shown stays shown: a tensor, a dict that holds one, a counter, the list of layers."""
    if isinstance(child, torch.Tensor):
        return lambda value: isinstance(value, torch.Tensor)
    if isinstance(child, dict):
        return lambda value: (
            type(value) is dict and any(isinstance(v, torch.Tensor) for v in value.values())
        )
    cls = type(child)
    return lambda value: type(value) is cls
