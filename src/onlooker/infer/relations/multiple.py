"""patches 8, 12; images 2, 3 -> patches == 4*images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...core.expression import Expression
from .base import Column, shared

__all__ = ["Multiple"]


class Multiple:
    """A class that is a whole multiple of another one, in two distinct rows at least."""

    name = "multiple"

    def propose(self, target: Column, others: Sequence[Column]) -> Iterator[Expression]:
        """``k * a`` for every other class, k > 1."""
        for other in others:
            rows = {row for row in shared(target, other) if row != (0, 0)}
            if len(rows) < 2 or any(b == 0 or a % b for a, b in rows):
                continue
            factors = {a // b for a, b in rows}
            if len(factors) == 1 and (factor := factors.pop()) > 1:
                yield Expression.symbol(other.name) * factor
