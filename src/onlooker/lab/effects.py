"""The changes that a call makes to the arguments of its caller: found by one experiment with the
model, on copies.

A program returns new objects; a model may change the ones that came in: a cache, a table, a tensor
that is written in place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..core.call import Arguments
from ..core.path import Name, Path
from ..core.structure import Tree
from ..observing.effects import Effect, HeldTree
from ..pytrees.adopt import Place, can_change, placed
from ..pytrees.deepcopy import torch_deepcopy
from ..pytrees.layers import is_cache
from ..pytrees.open import is_model_output, open_tree

__all__ = ["ArgumentEffects", "HeldArguments", "effects_of", "objects_in"]


@dataclass(frozen=True, slots=True)
class ArgumentEffects:
    """The effects of a method on one argument, and the place of the result that has the argument
    itself; None where none has.
    """

    effects: tuple[Effect, ...]
    returned: Place | None

    @property
    def written(self) -> frozenset[Path]:
        """The tensors that stay the same object with other values."""
        return frozenset(effect.place for effect in self.effects if effect.is_write)


def objects_in(values: Mapping[str, Any]) -> dict[str, Tree[Any]]:
    """The arguments that a method can change and that hold tensors, opened: objects, lists and
    dicts, tuples with these, no caches.
    """
    found = {}
    for name, value in values.items():
        if isinstance(value, torch.Tensor) or is_cache(value) or is_model_output(value):
            continue
        if isinstance(value, tuple) and not can_change(value):
            continue
        tree = open_tree(value)
        if not tree.structure.is_leaf and any(
            isinstance(leaf, torch.Tensor) for leaf in tree.leaves
        ):
            found[name] = tree
    return found


def effects_of(
    names: Iterable[str], values: Mapping[str, Any], run: Callable[..., Any]
) -> dict[str, ArgumentEffects]:
    """The effects of ``run(values)`` on the arguments called ``names``; all happens to copies."""
    copies: Arguments = torch_deepcopy(dict(values))
    held = {name: HeldTree(open_tree(copies[name])) for name in names}
    result = run(copies)
    return {
        name: ArgumentEffects(before.effects(open_tree(copies[name])), placed(result, copies[name]))
        for name, before in held.items()
    }


class HeldArguments:
    """The objects, lists and dicts among arguments at one moment, but for those that are ``known`` to change.

    >>> given = {"rows": {"x": torch.zeros(2), "y": torch.zeros(2)}, "n": [1]}
    >>> held = HeldArguments(given)
    >>> _ = given["rows"].pop("y")
    >>> [str(effect.place) for effect in held.changes(result=None)]
    ['rows']
    """

    def __init__(self, values: Mapping[str, Any], known: Collection[str] = ()) -> None:
        self._values = {
            name: value
            for name, value in values.items()
            if name not in known and can_change(value) and not is_cache(value)
        }
        self._held = {
            name: HeldTree(open_tree(value), copies=False) for name, value in self._values.items()
        }

    def changes(self, result: Any) -> list[Effect]:
        """The changes of these arguments, but for writes to tensors, and for arguments that the result has: the caller
        finds those there.
        """
        return [
            replace(effect, place=Path((Name(name), *effect.place.entries)))
            for name, before in self._held.items()
            if placed(result, self._values[name]) is None
            for effect in before.effects(open_tree(self._values[name]))
            if not effect.is_write
        ]
