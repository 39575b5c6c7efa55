"""mask 8, past 5, sequence 3; mask 9, past 8, sequence 1 -> mask == past + sequence.

Calls of decoding have one token each:

    mask 18, past 1, prompt 16; mask 21, past 3, prompt 17 -> mask == past + prompt + 1
"""

from __future__ import annotations

from collections.abc import Iterator

from ...core.sizes.expression import Expression
from .base import Column
from .grid import Grid
from .pairs import changing, pairs

__all__ = ["Total"]


class Total:
    """A class that is the sum of two others, and of a ``number``; two distinct rows are needed, and both terms must
    change.
    """

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.name = f"sum and {number}" if number else "sum"

    def propose(self, target: Column, grid: Grid) -> Iterator[Expression]:
        """``a + b + number`` for every pair of other classes that are lengths."""
        if target.is_first:
            return
        for left, right, rows in pairs(target, grid, self._rest):
            if not left.is_first and not right.is_first and changing(grid, rows, left, right):
                terms = Expression.symbol(left.name) + Expression.symbol(right.name)
                yield terms + Expression.constant(self.number) if self.number else terms

    def _rest(self, total: int, term: int) -> int | None:
        rest = total - term - self.number
        return rest if rest >= 0 else None
