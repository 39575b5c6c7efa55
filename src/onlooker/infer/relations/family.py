"""What a family of relations is: it proposes, the table strikes out what does not hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from ...core.expression import Expression
from .base import Column
from .grid import Grid

__all__ = ["Family"]


class Family(Protocol):
    """One form of relation."""

    name: str

    def propose(self, target: Column, grid: Grid) -> Iterator[Expression]:
        """Expressions of other classes that equal ``target`` in all rows that hold them, the
        likeliest first.
        """
        ...  # pragma: no cover
