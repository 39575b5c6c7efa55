"""The families of relations, in the order in which they are tried.

An example: four axes, as three calls had them, become columns of a table::

    axis                            call 0      call 1      call 2
    input_ids.shape[1]              5           1           1
    past.shape[2]                   0           5           6
    attention_mask.shape[1]         5           6           7
    pixel_values.shape[2]           64          96          32

``Total`` finds that the third column is the sum of the first two in every call: ``attention_mask.shape[1] ==
past_sequence + sequence``. No smaller relation says it: ``attention_mask.shape[1] == sequence`` fails in call
1. The last column is in no relation with others, and a multiple of 32 in all calls: its symbol moves in
steps of 32. A relation needs evidence: with call 0 alone ``attention_mask.shape[1]`` could be the one or the
other, and an experiment with the model decides (:mod:`onlooker.hypotheses`).
"""

from __future__ import annotations

from .base import Column, evidence, shared
from .difference import FixedDifference
from .divisible import step_of
from .division import Division
from .equal import group_equal, varies
from .family import RelationFamily
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
    "Grid",
    "RelationFamily",
    "evidence",
    "group_equal",
    "shared",
    "step_of",
    "varies",
]

FAMILIES: tuple[RelationFamily, ...] = (
    Total(),
    Offset(),
    Multiple(),
    FixedDifference(),
    Product(),
    Minimum(),
    Division(),
    Total(1),
)

#: with less evidence, for the model to judge where fresh sizes show that something is missing
GUESSES: tuple[RelationFamily, ...] = (
    FixedDifference(rows=2),
    Minimum(each=1),
    Division(certain=False),
)
