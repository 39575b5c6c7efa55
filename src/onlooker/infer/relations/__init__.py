"""The families of relations, in the order in which they are tried."""

from __future__ import annotations

from .base import Column, Family, evidence
from .difference import Difference
from .divisible import step_of
from .equal import group_equal, varies
from .multiple import Multiple
from .offset import Offset
from .total import Total

__all__ = ["FAMILIES", "Column", "Family", "evidence", "group_equal", "step_of", "varies"]

FAMILIES: tuple[Family, ...] = (Total(), Offset(), Multiple(), Difference())
