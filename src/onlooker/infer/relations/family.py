"""The members of a family of relations, which proposes what holds in all rows of a table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from ...core.sizes.expression import Expression
from .base import Column
from .grid import Grid

__all__ = ["RelationFamily"]


class RelationFamily(Protocol):
    """One form of relation."""

    name: str

    def propose(self, target: Column, grid: Grid) -> Iterator[Expression]:
        """Expressions of other classes that equal ``target`` in all rows that hold them, the
        likeliest first. Nobody checks them against the table again.
        """
        ...  # pragma: no cover
