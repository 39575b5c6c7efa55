"""New calls against what a program was made for: which fall outside, and by what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .support.enums import StrEnum

__all__ = [
    "ALWAYS_GIVEN",
    "CheckedCall",
    "SizedCall",
    "Violation",
    "ViolationKind",
    "rows_by_graph",
]


#: what an absent argument has to be where every watched call passed it
ALWAYS_GIVEN = "given, as in every observed call"


class ViolationKind(StrEnum):
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
    BOUND = "bound"
    CONDITION = "condition"
    FLAG = "flag"
    CLASS = "class"
    PROGRAM = "program"
    VALUES = "values"


@dataclass(frozen=True, slots=True)
class Violation:
    """One way in which a call falls outside: the argument or axis, what it has to be, and what it
    is.

    >>> str(Violation(ViolationKind.RANGE, "x.shape[0]", "batch from 2", "1"))
    'x.shape[0] has to be batch from 2, the call has 1 (range)'
    """

    kind: ViolationKind
    where: str
    expected: str
    got: str

    @property
    def said(self) -> str:
        """The violation as part of the sentence by which a call is refused."""
        if self.kind is ViolationKind.ABSENT and self.expected == ALWAYS_GIVEN:
            return f"{self.where} was in every observed call, this one does not have it"
        call = "the call does not give it" if self.got == "nothing" else f"the call has {self.got}"
        if self.kind is ViolationKind.CONDITION or (
            self.kind is ViolationKind.BOUND and self.where == "this graph"
        ):
            return f"{self.where} needs {self.expected}, {call}"
        if self.kind is ViolationKind.PROGRAM:
            return f"{self.where} refuses it ({self.got})"
        if self.kind is ViolationKind.VALUES and self.expected:
            return (
                f"{self.where} goes another way than the watched calls where the model decides by"
                f" values, at {self.expected}"
            )
        if self.kind is ViolationKind.VALUES:
            return f"an assertion of the model about values does not hold for {self.where}"
        if self.kind is ViolationKind.UNKNOWN:
            return f"{self.where} is not an input, {call}"
        if self.kind in (ViolationKind.CONSTANT, ViolationKind.SIZE, ViolationKind.FLAG):
            return f"{self.where} is always {self.expected}, {call}"
        if self.kind in (ViolationKind.TYPE, ViolationKind.CLASS):
            article = "" if self.expected.startswith(("a ", "an ")) else "a "
            return f"{self.where} is {article}{self.expected}, {call}"
        if self.kind in (ViolationKind.RANGE, ViolationKind.BOUND):
            return f"{self.where} is {self.expected}, {call}"
        return f"{self.where} has to be {self.expected}, {call}"

    def __str__(self) -> str:
        return f"{self.where} has to be {self.expected}, the call has {self.got} ({self.kind})"


@dataclass(frozen=True, slots=True)
class CheckedCall:
    """One call: the graph that serves it, or the violations of the graph that comes nearest.

    ``count`` is the number of calls that this one stands for.
    """

    index: int
    graph: str
    violations: tuple[Violation, ...] = ()
    count: int = 1

    @property
    def holds(self) -> bool:
        """True when a graph serves the call."""
        return not self.violations


#: a checked call, and its sizes by symbol
SizedCall = tuple[CheckedCall, dict[str, int]]


def rows_by_graph(calls: Iterable[SizedCall]) -> dict[str, list[tuple[Mapping[str, int], int]]]:
    """The sizes of the calls that each graph serves, with the number of calls that have them."""
    found: dict[str, list[tuple[Mapping[str, int], int]]] = {}
    for call, sizes in calls:
        if call.holds:
            found.setdefault(call.graph, []).append((sizes, call.count))
    return found
