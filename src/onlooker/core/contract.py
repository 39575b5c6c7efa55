"""What a call must satisfy to be served by one graph, beside the plan: the sizes for which the
graph is proven.

A plan says which inputs there are and how their sizes follow from symbols. A contract says for
which sizes of the symbols the graph is known to do what the model does, and why: each constraint
has its origin, and what was dropped has its evidence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .enums import StrEnum
from .formula import holds

__all__ = ["Constraint", "Contract", "Dropped", "Origin", "Region"]


class Origin(StrEnum):
    """Where a constraint comes from."""

    MODEL = "model"  #: the Python of the model decided so, in the line that is given
    OPERATOR = "operator"  #: an operator of torch decided so while it was traced
    FIXED = "fixed"  #: torch made the size a number
    STEPS = "steps"  #: a loop was compared for no more steps than these
    RUNTIME = (
        "runtime"  #: an operator of the runtime that the graph was converted for takes no others
    )
    UNPROVEN = "unproven"  #: the graph was not proven for the other sizes, or differs there


@dataclass(frozen=True, slots=True)
class Constraint:
    """A condition over the symbols of a plan, its origin, and the line of the model where there is
    one.

    >>> Constraint("sequence > 24", Origin.MODEL, "model.py:12 in forward: if x.shape[1] > 24:").holds({"sequence": 8})
    False
    """

    formula: str
    origin: Origin
    line: str = ""

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """True when the sizes satisfy the condition; False where it has no answer."""
        return holds(self.formula, sizes)

    def __str__(self) -> str:
        return f"{self.formula}, because of {self.line}" if self.line else self.formula


@dataclass(frozen=True, slots=True)
class Region:
    """Sizes for which the graph is proven: all constraints hold. ``evidence`` says by which
    trace.
    """

    constraints: tuple[Constraint, ...] = ()
    evidence: str = ""

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """True for sizes that satisfy every constraint."""
        return all(constraint.holds(sizes) for constraint in self.constraints)


@dataclass(frozen=True, slots=True)
class Dropped:
    """A condition of the trace that a call need not satisfy, and the evidence that the graph is
    right without it.
    """

    formula: str
    evidence: str
    line: str = ""

    @property
    def condition(self) -> str:
        """The formula with the line of the model that asked for it."""
        return f"{self.formula} ({self.line})" if self.line else self.formula

    def __str__(self) -> str:
        return f"{self.condition} is not needed: {self.evidence}"


@dataclass(frozen=True, slots=True)
class Contract:
    """The regions for which a graph is proven; a call must lie in one of them.

    >>> short = Region((Constraint("n <= 24", Origin.MODEL),))
    >>> even = Region((Constraint("n % 2 == 0", Origin.MODEL),))
    >>> contract = Contract((short, even))
    >>> [n for n in (3, 24, 25, 26) if contract.holds({"n": n})]
    [3, 24, 26]
    """

    regions: tuple[Region, ...] = (Region(),)
    dropped: tuple[Dropped, ...] = ()

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """True for sizes of which some region holds."""
        return any(region.holds(sizes) for region in self.regions)

    def failing(self, sizes: Mapping[str, int]) -> tuple[Constraint, ...]:
        """The constraints that the sizes violate, of the region that comes nearest; nothing
        where one holds.
        """
        violated = [
            tuple(constraint for constraint in region.constraints if not constraint.holds(sizes))
            for region in self.regions
        ]
        return min(violated, key=len, default=())

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        """The constraints that every region has."""
        first, *others = self.regions or (Region(),)
        formulas = [{constraint.formula for constraint in region.constraints} for region in others]
        return tuple(c for c in first.constraints if all(c.formula in known for known in formulas))
