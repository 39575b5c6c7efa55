"""Pairs of classes that together give a third one: for each first of them, the second is looked
up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from .base import Column
from .grid import Grid, Vector, itself

__all__ = ["Rest", "changing", "pairs"]

#: what the second class must have for a size of the target and one of the first; None for nothing
Rest = Callable[[int, int], int | None]


def pairs(
    target: Column, grid: Grid, rest: Rest
) -> Iterator[tuple[Column, Column, tuple[int, ...]]]:
    """Pairs, in the order of the classes, with the rows that all three have; at least two of them
    are distinct.

    One question per first class and set of rows: with n classes it is n^2 for all targets, and not
    n^3.
    """
    for left in grid.columns:
        if left.name == target.name:
            continue
        rows = grid.rows(target, left)
        found = []
        for own, common in grid.groups(rows):
            if _may_hold(grid, target, left, own, common, rest):
                vector = _rest_of(grid, target, left, common, rest)
                found += [
                    (column, common)
                    for column in (grid.find(own, common, itself, vector) if vector else ())
                ]
        for right, common in grid.ordered(found):
            if grid.position(right) > grid.position(left) and right.name != target.name:
                yield left, right, common


def _may_hold(
    grid: Grid, target: Column, left: Column, own: Vector, rows: Vector, rest: Rest
) -> bool:
    """False where two rows tell at once that no class of a group has what is wanted."""
    for row in rows[:2]:
        other = rest(grid.size(target, row), grid.size(left, row))
        if other is None or not grid.has(own, row, other):
            return False
    return True


def _rest_of(
    grid: Grid, target: Column, left: Column, rows: Sequence[int], rest: Rest
) -> Vector | None:
    found = []
    for total, part in zip(grid.sizes(target, rows), grid.sizes(left, rows), strict=True):
        other = rest(total, part)
        if other is None:
            return None
        found.append(other)
    return tuple(found)


def changing(grid: Grid, rows: tuple[int, ...], *columns: Column) -> bool:
    """True when every class has two sizes at least in these rows."""
    return all(len(set(grid.sizes(column, rows))) > 1 for column in columns)
