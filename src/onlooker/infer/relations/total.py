"""mask 8, past 5, sequence 3; mask 9, past 8, sequence 1 -> mask == past + sequence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from ...core.expression import Expression
from .base import Column, shared

__all__ = ["Total"]


class Total:
    """A class that is the sum of two others; two distinct rows are needed, and both terms must change."""

    name = "sum"

    def propose(self, target: Column, others: Sequence[Column]) -> Iterator[Expression]:
        """``a + b`` for every pair of other classes that are lengths."""
        if target.is_first:
            return
        for left, right in combinations([c for c in others if not c.is_first], 2):
            rows = set(shared(target, left, right))
            changing = all(len({row[i] for row in rows}) > 1 for i in (1, 2))
            if changing and all(total == a + b for total, a, b in rows):
                yield Expression.symbol(left.name) + Expression.symbol(right.name)
