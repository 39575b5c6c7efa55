"""mask 8, past 5, sequence 3; mask 9, past 8, sequence 1 -> mask == past + sequence."""

from __future__ import annotations

from collections.abc import Iterator

from ...core.sizes.expression import Expression
from .base import Column
from .grid import Grid
from .pairs import changing, pairs

__all__ = ["Total"]


class Total:
    """A class that is the sum of two others; two distinct rows are needed, and both terms must
    change.
    """

    name = "sum"

    def propose(self, target: Column, grid: Grid) -> Iterator[Expression]:
        """``a + b`` for every pair of other classes that are lengths."""
        if target.is_first:
            return
        for left, right, rows in pairs(target, grid, _rest):
            if not left.is_first and not right.is_first and changing(grid, rows, left, right):
                yield Expression.symbol(left.name) + Expression.symbol(right.name)


def _rest(total: int, term: int) -> int | None:
    return total - term if term <= total else None
