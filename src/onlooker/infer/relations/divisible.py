"""height 32, 48, 64 -> height % 16 == 0."""

from __future__ import annotations

from math import gcd

from .base import Column

__all__ = ["step_of"]


def step_of(column: Column, *, of_few: bool = False) -> int:
    """The greatest number that divides every size of the class, or 1 where that says little.

    A step of 4 or more needs two distinct sizes, a smaller one needs three, and two ``of_few``.

    >>> step_of(Column("h", (), (32, 48, 64))), step_of(Column("h", (), (6, 8)))
    (16, 1)
    """
    values = {v for v in column.values if v}
    step = gcd(*values) if values else 1
    enough = len(values) >= (2 if step >= 4 or of_few else 3)
    return step if enough and step > 1 else 1
