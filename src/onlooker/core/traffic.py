"""New calls against what a program was made for: which fall outside, and by what."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Breach", "BreachKind", "CheckedCall"]


class BreachKind(StrEnum):
    """In which way a call falls outside."""

    SIGNATURE = "signature"
    ABSENT = "absent"
    UNKNOWN = "unknown"
    CONSTANT = "constant"
    TYPE = "type"
    SIZE = "size"
    RELATION = "relation"
    RANGE = "range"
    STEP = "step"
    CONDITION = "condition"
    FLAG = "flag"
    PROGRAM = "program"


@dataclass(frozen=True, slots=True)
class Breach:
    """One way in which a call falls outside: the argument or axis, what it has to be, and what it is.

    >>> str(Breach(BreachKind.RANGE, "x.shape[0]", "batch from 2", "1"))
    'x.shape[0] has to be batch from 2, the call has 1 (range)'
    """

    kind: BreachKind
    where: str
    expected: str
    got: str

    @property
    def said(self) -> str:
        """The breach as part of a sentence."""
        if self.kind is BreachKind.CONDITION:
            return f"{self.where} needs {self.expected}, the call has {self.got}"
        if self.kind is BreachKind.PROGRAM:
            return f"{self.where} refuses it ({self.got})"
        return f"{self.where} has to be {self.expected}, the call has {self.got}"

    def __str__(self) -> str:
        return f"{self.said} ({self.kind})"


@dataclass(frozen=True, slots=True)
class CheckedCall:
    """One call: the graph that serves it, or the breaches of the graph that comes nearest.

    ``count`` is the number of calls that this one stands for.
    """

    index: int
    graph: str
    breaches: tuple[Breach, ...] = ()
    count: int = 1

    @property
    def holds(self) -> bool:
        """True when a graph serves the call."""
        return not self.breaches
