"""frames 5, 8, 9, 12, 14; samples 11, 17, 20, 25, 30 -> frames == (samples - 3)//2 + 1."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from ...core.sizes.expression import Expression
from .base import Column
from .grid import Grid, Vector

__all__ = ["Division"]

#: distinct rows that are needed: two numbers are free, the stride and the kernel
_LEAST_ROWS = 5
#: a smaller spread of counts says too little of the stride
_LEAST_SPREAD = 4
#: the most pairs of stride and kernel that are left for the model to judge
_MOST_FITTING = 12


class Division:
    """A class that counts the windows of a kernel over another one, in steps of a stride of 2 at
    least.

    Two numbers are free, so that five distinct rows are needed, one stride alone may fit them, and
    the rows must tell the kernel to one: they then hold a length that just gains a window, and one
    that just misses it. With ``certain=False`` three rows are enough, and all strides and kernels
    that fit are proposed, for the model to judge.
    """

    name = "division"

    def __init__(self, *, certain: bool = True) -> None:
        self.most = 1 if certain else _MOST_FITTING
        self.rows, self.spread = (_LEAST_ROWS, _LEAST_SPREAD) if certain else (3, 2)

    def propose(self, target: Column, grid: Grid) -> Iterator[Expression]:
        """``(a - k)//s + 1`` for every other class of lengths."""
        known: dict[Vector, Vector] = {}
        for other in grid.columns if not target.is_first else ():
            if other.name == target.name or other.is_first:
                continue
            rows = grid.rows(target, other)
            order = known.get(rows)
            if order is None:
                order = known[rows] = tuple(sorted(rows, key=lambda row: grid.size(target, row)))
            if len(rows) < self.rows or not _ascends(other, order, grid, target):
                continue
            fitting = self._fitting(
                *(tuple(grid.size(c, row) for row in order) for c in (target, other))
            )
            if len(fitting) <= self.most:
                yield from (_windows(Expression.symbol(other.name), *found) for found in fitting)

    def _fitting(self, counts: Vector, lengths: Vector) -> list[tuple[int, int]]:
        """The strides and kernels that give all counts, which ascend; one more at most than are
        wanted.
        """
        windows, length = counts[-1] - counts[0], lengths[-1] - lengths[0]
        found: list[tuple[int, int]] = []
        if (
            windows < self.spread
            or length < windows
            or len(set(zip(counts, lengths, strict=True))) < self.rows
        ):
            return found
        # the widest rows bound the stride; each stride then bounds the kernel
        for stride in range(max(2, length // (windows + 1)), length // (windows - 1) + 2):
            gaps = [
                length - stride * (count - 1) for count, length in zip(counts, lengths, strict=True)
            ]
            # a - k lies in one stride from s*(count - 1) on: the kernel is between these two
            least, most = max(gaps) - stride + 1, min(gaps)
            found += [(stride, kernel) for kernel in range(least, most + 1)][: self.most + 1]
            if len(found) > self.most:
                break
        return found


def _ascends(other: Column, order: Vector, grid: Grid, target: Column) -> bool:
    """True when more windows never come from a shorter length; ``order`` has the rows by their
    windows.
    """
    for one, two in pairwise(order):
        if grid.size(other, one) > grid.size(other, two) and grid.size(target, one) < grid.size(
            target, two
        ):
            return False
    return True


def _windows(length: Expression, stride: int, kernel: int) -> Expression:
    if kernel == stride:
        return length // stride
    return (length - Expression.constant(kernel)) // stride + Expression.constant(1)
