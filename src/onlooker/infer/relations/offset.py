"""labels 9, 6; sequence 10, 7 -> sequence == labels + 1."""

from __future__ import annotations

from collections.abc import Iterator

from ...core.sizes.expression import Expression
from .base import Column
from .grid import Grid, ascent

__all__ = ["Offset"]


class Offset:
    """A class that is another one plus a positive constant, in two distinct rows at least."""

    name = "offset"

    def propose(self, target: Column, grid: Grid) -> Iterator[Expression]:
        """``a + c`` for every other class of lengths in a tensor of its own."""
        if target.is_first:
            return
        for other, rows in grid.partners(
            grid.rows(target), lambda rows: ascent(grid.sizes(target, rows)), ascent
        ):
            sizes, others = grid.sizes(target, rows), grid.sizes(other, rows)
            gap = sizes[0] - others[0]
            if (
                gap > 0
                and len(set(others)) > 1
                and not other.is_first
                and not _one_tensor(target, other)
            ):
                yield Expression.symbol(other.name) + Expression.constant(gap)


def _one_tensor(left: Column, right: Column) -> bool:
    """True when both classes are dimensions of the same tensors: sides of an image are no
    offsets.
    """
    return {axis.path for axis in left.axes} == {axis.path for axis in right.axes}
