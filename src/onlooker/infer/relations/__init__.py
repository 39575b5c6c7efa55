"""The families of relations, in the order in which they are tried."""

from __future__ import annotations

from .base import Column, evidence
from .difference import Difference
from .divisible import step_of
from .division import Division
from .equal import group_equal, varies
from .family import Family
from .grid import Grid
from .minimum import Minimum
from .multiple import Multiple
from .offset import Offset
from .product import Product
from .total import Total

__all__ = [
    "FAMILIES",
    "GUESSES",
    "Column",
    "Family",
    "Grid",
    "evidence",
    "group_equal",
    "step_of",
    "varies",
]

FAMILIES: tuple[Family, ...] = (
    Total(),
    Offset(),
    Multiple(),
    Difference(),
    Product(),
    Minimum(),
    Division(),
)

#: with less evidence, for the model to judge where fresh sizes show that something is missing
GUESSES: tuple[Family, ...] = (Difference(rows=2), Minimum(each=1), Division(certain=False))
