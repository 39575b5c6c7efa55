"""new 4086, 4088, 4090; kept 10, 8, 6 -> new == 4096 - kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...core.expression import Expression
from .base import Column, shared

__all__ = ["Difference"]


class Difference:
    """A class that fills another one up to a constant, in three distinct rows at least."""

    name = "difference"

    def propose(self, target: Column, others: Sequence[Column]) -> Iterator[Expression]:
        """``c - a`` for every other class of lengths."""
        if target.is_first:
            return
        for other in others:
            rows = set(shared(target, other))
            totals = {a + b for a, b in rows}
            if len(rows) > 2 and len(totals) == 1 and not other.is_first:
                yield Expression.constant(totals.pop()) - Expression.symbol(other.name)
