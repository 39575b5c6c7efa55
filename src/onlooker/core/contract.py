"""The conditions under which one graph serves a call, beside the plan: the sizes for which the
graph is proven.

A plan says which inputs there are and how their sizes follow from symbols. A contract says for
which sizes of the symbols the graph is known to do what the model does, and why: each constraint
has its origin, and what was dropped has its evidence.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace

from .sizes.expression import Sizes
from .sizes.formula import holds
from .support.enums import StrEnum

__all__ = ["Constraint", "Contract", "Dropped", "Origin", "Region", "Way"]


class Origin(StrEnum):
    """The origins of constraints."""

    MODEL = "model"  #: the Python of the model decided so, in the line that is given
    OPERATOR = "operator"  #: an operator of torch decided so while it was traced
    FIXED = "fixed"  #: torch made the size a number
    BOUND = "bound"  #: the model itself refuses sizes beyond it: the rows of a table run out
    STEPS = "steps"  #: a loop was compared for no more steps than these
    RUNTIME = (
        "runtime"  #: an operator of the runtime that the graph was converted for takes no others
    )
    UNPROVEN = "unproven"  #: the graph was not proven for the other sizes, or differs there


@dataclass(frozen=True, slots=True)
class Constraint:
    """A condition over the symbols of a plan, its origin, and the line of the model where there is
    one. ``reason`` says what ends at a bound: ``128 rows of position_embeddings.weight``.

    >>> Constraint("sequence > 24", Origin.MODEL, "model.py:12 in forward: if x.shape[1] > 24:").holds({"sequence": 8})
    False
    """

    formula: str
    origin: Origin
    line: str = ""
    reason: str = ""

    def holds(self, sizes: Sizes) -> bool:
        """True when the sizes satisfy the condition; False where it has no answer."""
        return holds(self.formula, sizes)

    @property
    def because(self) -> str:
        """The words that follow the condition in a sentence: what ends, and the line; empty without
        both.

        >>> Constraint("n <= 128", Origin.BOUND, reason="128 rows of pe").because
        ' (128 rows of pe)'
        """
        reason = f" ({self.reason})" if self.reason else ""
        return f"{reason}, because of {self.line}" if self.line else reason

    def __str__(self) -> str:
        return f"{self.formula}{self.because}"


@dataclass(frozen=True, slots=True)
class Region:
    """Sizes for which the graph is proven: all constraints hold. ``evidence`` says by which
    trace.
    """

    constraints: tuple[Constraint, ...] = ()
    evidence: str = ""

    def holds(self, sizes: Sizes) -> bool:
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
class Way:
    """Arguments that a call may leave out together, and the sizes for which a trace without them
    gives the same graph, or runs of the model without them what the graph gives. They may be more
    sizes than those of calls that pass the arguments: a model with ``chunk=64`` takes another path
    beyond 64 rows, and without it the path stays the same.

    ``left_out`` are the names of the arguments, ``regions`` the sizes, and ``evidence`` says how the
    two were compared.
    """

    left_out: tuple[str, ...]
    regions: tuple[Region, ...] = (Region(),)
    evidence: str = "traced without them"

    def holds(self, sizes: Sizes) -> bool:
        """True for sizes of which some region holds."""
        return any(region.holds(sizes) for region in self.regions)


@dataclass(frozen=True, slots=True)
class Contract:
    """The regions for which a graph is proven; a call must lie in one of them.

    A call that leaves out arguments which the graph was traced with must do so in one of the
    ``ways``, and lie in a region of that way instead.

    >>> short = Region((Constraint("n <= 24", Origin.MODEL),))
    >>> even = Region((Constraint("n % 2 == 0", Origin.MODEL),))
    >>> contract = Contract((short, even))
    >>> [n for n in (3, 24, 25, 26) if contract.holds({"n": n})]
    [3, 24, 26]
    """

    regions: tuple[Region, ...] = (Region(),)
    dropped: tuple[Dropped, ...] = ()
    ways: tuple[Way, ...] = ()

    def holds(self, sizes: Sizes) -> bool:
        """True for sizes of which some region holds."""
        return any(region.holds(sizes) for region in self.regions)

    def way(self, left_out: Collection[str]) -> Way | None:
        """The way in which a call leaves out just these arguments; None where no trace proved it."""
        names = set(left_out)
        return next((way for way in self.ways if set(way.left_out) == names), None)

    def narrowed(self, narrow: Callable[[Region], Iterable[Region]]) -> Contract:
        """The contract with narrower regions in the place of each region, also of each way."""

        def all_of(regions: Iterable[Region]) -> tuple[Region, ...]:
            return tuple(one for region in regions for one in narrow(region))

        ways = tuple(replace(way, regions=all_of(way.regions)) for way in self.ways)
        return replace(self, regions=all_of(self.regions), ways=ways)

    def failing(self, sizes: Sizes) -> tuple[Constraint, ...]:
        """The constraints that the sizes violate, of the region that comes nearest; nothing
        where one holds.
        """
        violated = [
            tuple(constraint for constraint in region.constraints if not constraint.holds(sizes))
            for region in self.regions
        ]
        return min(violated, key=len, default=())

    def ended(self, sizes: Sizes) -> tuple[Constraint, ...]:
        """The bounds beyond which the model itself refuses the sizes; nothing where some region
        holds, or where another condition keeps them out as well.

        >>> table = Constraint("n <= 128", Origin.BOUND, reason="128 rows of pe")
        >>> contract = Contract((Region((table, Constraint("n > 4", Origin.MODEL))),))
        >>> contract.ended({"n": 128}), contract.ended({"n": 129}) == (table,)
        ((), True)
        """
        if self.holds(sizes):
            return ()
        for region in self.regions:
            failing = tuple(c for c in region.constraints if not c.holds(sizes))
            if all(constraint.origin is Origin.BOUND for constraint in failing):
                return failing
        return ()

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        """The constraints that every region has."""
        first, *others = self.regions or (Region(),)
        common = {constraint.formula for constraint in first.constraints}
        for region in others:
            common &= {constraint.formula for constraint in region.constraints}
        return tuple(c for c in first.constraints if c.formula in common)
