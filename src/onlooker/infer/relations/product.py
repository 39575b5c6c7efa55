"""tokens 14, 27, 20; batch 2, 3, 4; sequence 7, 9, 5 -> tokens == batch*sequence."""

from __future__ import annotations

from collections.abc import Iterator

from ...core.sizes.expression import Expression
from .base import Column
from .grid import Grid, Vector, direction

__all__ = ["Product"]


class Product:
    """A class that is the product of two others, with or without a whole factor: what was laid
    flat.

    Both must change. Without a factor two distinct rows are needed in which both are greater than
    1, with one three: a factor is a free number, and would fit through one row more.
    """

    name = "product"

    def propose(self, target: Column, grid: Grid) -> Iterator[Expression]:
        """``a*b``, then ``k*a*b``, for every pair of other classes."""
        found = [
            (factor, left, right)
            for left in grid.columns
            for right, factor in _partners(target, left, grid)
            if grid.position(right) > grid.position(left)
        ]
        for factor, left, right in sorted(found, key=lambda choice: choice[0]):
            yield Expression.symbol(left.name) * Expression.symbol(right.name) * factor


def _partners(target: Column, left: Column, grid: Grid) -> Iterator[tuple[Column, int]]:
    """The classes that with ``left`` give the target, and the factor."""
    if left.name == target.name:
        return

    def quotient(rows: tuple[int, ...]) -> Vector | None:
        found = []
        for row in rows:
            total, part = grid.size(target, row), grid.size(left, row)
            if not part or total % part:
                return None
            found.append(total // part)
        return direction(tuple(found))

    for right, rows in grid.partners(grid.rows(target, left), quotient, direction):
        triples = set(
            zip(*(grid.sizes(column, rows) for column in (target, left, right)), strict=True)
        )
        telling = [(total, a, b) for total, a, b in triples if a > 1 and b > 1]
        if right.name == target.name or not telling:
            continue
        total, a, b = telling[0]
        factor, rest = divmod(total, a * b)
        changing = all(len({triple[side] for triple in telling}) > 1 for side in (1, 2))
        if not rest and changing and len(telling) >= (2 if factor == 1 else 3):
            yield right, factor
