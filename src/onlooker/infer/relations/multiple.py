"""patches 8, 12; images 2, 3 -> patches == 4*images."""

from __future__ import annotations

from collections.abc import Iterator

from ...core.sizes.expression import Expression
from .base import Column
from .grid import Grid, direction

__all__ = ["Multiple"]


class Multiple:
    """A class that is a whole multiple of another one, in two distinct rows at least."""

    name = "multiple"

    def propose(self, target: Column, grid: Grid) -> Iterator[Expression]:
        """``k * a`` for every other class, k > 1."""
        found = grid.partners(
            grid.rows(target), lambda rows: direction(grid.sizes(target, rows)), direction
        )
        for other, rows in found:
            pairs = {
                (a, b)
                for a, b in zip(grid.sizes(target, rows), grid.sizes(other, rows), strict=True)
                if b
            }
            size, part = max(pairs)
            factor, rest = divmod(size, part)
            if len(pairs) > 1 and factor > 1 and not rest:
                yield Expression.symbol(other.name) * factor
