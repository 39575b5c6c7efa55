"""Opens values, along the patterns of earlier ones where they fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..core.structure import Structure, Tree
from .patterns import Pattern, patterns_of, read

__all__ = ["Opener"]

_MOST_PATTERNS = 8


class Opener:
    """Opens values, along the patterns of earlier ones where they fit; structures are counted
    from 0.
    """

    def __init__(self) -> None:
        self.structures: list[Structure] = []
        self._numbers: dict[Structure, int] = {}
        self._known: dict[Any, list[tuple[tuple[Pattern | None, ...], int]]] = {}

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
            if read(values, patterns, leaves):
                if position:
                    self._known[key] = [known[position], *known[:position], *known[position + 1 :]]
                return number, leaves
        tree, structures = structure_of()
        number = self.number(tree.structure)
        patterns = patterns_of(values, structures)
        self._known[key] = [(patterns, number), *known[: _MOST_PATTERNS - 1]]
        return number, tree.leaves

    def number(self, structure: Structure) -> int:
        """The number of a structure; equal ones have the same."""
        number = self._numbers.setdefault(structure, len(self.structures))
        if number == len(self.structures):
            self.structures.append(structure)
        return number
