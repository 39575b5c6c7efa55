"""new 4086, 4088, 4090; kept 10, 8, 6 -> new == 4096 - kept."""

from __future__ import annotations

from collections.abc import Iterator

from ...core.sizes.expression import Expression
from .base import Column
from .grid import Grid, Vector, ascent

__all__ = ["FixedDifference"]


class FixedDifference:
    """A class that fills another one up to a constant, in three distinct rows at least.

    ``rows`` is another number of them, for a relation that is proposed for the model to judge.
    """

    name = "difference"

    def __init__(self, rows: int = 3) -> None:
        self.rows = rows

    def propose(self, target: Column, grid: Grid) -> Iterator[Expression]:
        """``c - a`` for every other class of lengths."""
        if target.is_first:
            return

        def descent(rows: tuple[int, ...]) -> Vector:
            return tuple(-step for step in ascent(grid.sizes(target, rows)))

        for other, rows in grid.partners(grid.rows(target), descent, ascent):
            sizes, others = grid.sizes(target, rows), grid.sizes(other, rows)
            if len(set(others)) >= self.rows and not other.is_first:
                yield Expression.constant(sizes[0] + others[0]) - Expression.symbol(other.name)
