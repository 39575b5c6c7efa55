"""kept 3, 9, 15, 15; past 3, 9, 20, 31 -> kept == min(past, 15)."""

from __future__ import annotations

from collections.abc import Iterator

from ...core.sizes.expression import Expression
from .base import Column
from .grid import Grid

__all__ = ["Minimum"]


class Minimum:
    """A class that follows another one up to a limit: a cache that keeps a window.

    Four distinct rows are needed: two sizes of the other class below the limit, and two above it.
    One row at the limit could be any size, and two rows below it are what an equal class has.
    ``each`` is another number on both sides, for a relation that is proposed for the model to
    judge.
    """

    name = "minimum"

    def __init__(self, each: int = 2) -> None:
        self.each = each

    def propose(self, target: Column, grid: Grid) -> Iterator[Expression]:
        """``min(a, c)`` for every other class of lengths."""
        rows = grid.rows(target)
        sizes = grid.sizes(target, rows)
        limit = max(sizes, default=0)
        if target.is_first or len(set(sizes)) <= self.each:
            return
        for other in grid.columns:
            if (
                other.name != target.name
                and not other.is_first
                and _follows(target, other, limit, grid, self.each)
            ):
                yield Expression.least(Expression.symbol(other.name), Expression.constant(limit))


def _follows(target: Column, other: Column, limit: int, grid: Grid, each: int) -> bool:
    rows = grid.rows(target, other)
    below, above = set[int](), set[int]()
    for size, length in zip(grid.sizes(target, rows), grid.sizes(other, rows), strict=True):
        if size != min(length, limit):
            return False
        (below if length < limit else above).add(length)
    return len(below) >= each and len(above - {limit}) >= each
