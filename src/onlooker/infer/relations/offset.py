"""labels 9, 6; sequence 10, 7 -> sequence == labels + 1."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...core.expression import Expression
from .base import Column, shared

__all__ = ["Offset"]


class Offset:
    """A class that is another one plus a positive constant, in two distinct rows at least."""

    name = "offset"

    def propose(self, target: Column, others: Sequence[Column]) -> Iterator[Expression]:
        """``a + c`` for every other class of lengths in a tensor of its own."""
        if target.is_first:
            return
        for other in others:
            rows = set(shared(target, other))
            gaps = {a - b for a, b in rows}
            if len(rows) > 1 and len(gaps) == 1 and not other.is_first and not _one_tensor(target, other):
                gap = gaps.pop()
                if gap > 0:
                    yield Expression.symbol(other.name) + Expression.constant(gap)


def _one_tensor(left: Column, right: Column) -> bool:
    """True when both classes are dimensions of the same tensors: sides of an image are no offsets."""
    return {axis.path for axis in left.axes} == {axis.path for axis in right.axes}
