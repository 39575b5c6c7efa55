"""What a family of hypotheses is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, Protocol

from ..core.experiment import BlindSpot
from ..lab.lab import Lab, SpentError
from ..observing.store import Sample
from .draft import Draft

__all__ = ["Family"]


class Family(Protocol):
    """One kind of claim about a model: it proposes instances, tests them in the Lab, and applies
    what holds.

    ``question`` says in words what is tested, ``most_runs`` is the most that it may take of
    the default budget.
    """

    question: ClassVar[str]
    most_runs: ClassVar[int]

    def __init__(self, draft: Draft, samples: Sequence[Sample], lab: Lab) -> None:
        """The family for one draft; nothing is run yet."""

    def drafts(self) -> Iterator[Draft]:
        """Drafts that know more and more; each one holds all that was found so far.

        :raises SpentError: when the budget, or the share of the family, has ended
        """

    def untested(self, spent: SpentError) -> BlindSpot:
        """What was not tested when the budget ended."""
