"""What trials of a program say: one Check per trial, and their sum."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Check", "Outcome", "Tally"]


class Outcome(StrEnum):
    """How one trial ended."""

    EXACT = "exact"
    DIFFERENT = "different"
    REJECTED = "rejected"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison of a program with the model in eager mode.

    ``kind`` is ``observed`` (a call that was watched) or ``unseen`` (sizes that no call and no export had),
    ``sizes`` the size of each symbol, ``difference`` the largest absolute difference of any output
    (infinite where a structure, dtype or shape differs, or a NaN meets a number).
    """

    kind: str
    label: str
    outcome: Outcome
    sizes: tuple[tuple[str, int], ...] = ()
    difference: float = 0.0
    note: str = ""

    @property
    def passed(self) -> bool:
        """True where the program gave what the model gives."""
        return self.outcome is Outcome.EXACT


@dataclass(frozen=True, slots=True)
class Tally:
    """The sum of checks. Tallies add up.

    >>> seen = Check("observed", "call 0", Outcome.EXACT)
    >>> new = Check("unseen", "batch=5", Outcome.DIFFERENT, difference=0.5)
    >>> (Tally((seen,)) + Tally((new,))).verified
    False
    >>> Tally().verified
    False
    """

    checks: tuple[Check, ...] = ()

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.checks + other.checks)

    @property
    def total(self) -> int:
        """The number of checks."""
        return len(self.checks)

    @property
    def passed(self) -> int:
        """The number of checks that hold."""
        return sum(check.passed for check in self.checks)

    @property
    def failed(self) -> int:
        """The number of checks that do not hold."""
        return self.total - self.passed

    @property
    def verified(self) -> bool:
        """True when there are checks, unseen ones among them, and every one holds."""
        return self.failed == 0 and any(check.kind == "unseen" for check in self.checks)

    @property
    def difference(self) -> float:
        """The largest difference of any check."""
        return max((check.difference for check in self.checks), default=0.0)
