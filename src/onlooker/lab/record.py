"""The record of experiments: what each one found, and what none could tell."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.experiment import BlindKind, BlindSpot, Experiment, Finding, FindingKind
from ..core.spec import Axis
from .budget import SpentError

__all__ = ["Record"]


class Record:
    """The experiments with a model, each with its finding.

    ``records`` has one value per experiment, ``unknown`` what was not tested since the budget ended.
    """

    def __init__(self) -> None:
        self.records: list[Experiment] = []
        self.unknown: list[BlindSpot] = []

    def record(
        self,
        axes: Sequence[Axis] = (),
        sizes: Sequence[int] = (),
        *,
        finding: Finding,
        label: str = "",
        claim: str = "",
        argument: str = "",
    ) -> Experiment:
        """Writes down one experiment, and gives the value that was written."""
        experiment = Experiment(tuple(axes), tuple(sizes), finding, label, claim, argument)
        self.records.append(experiment)
        return experiment

    def record_claim(
        self,
        claim: str,
        holds: bool,
        *,
        argument: str = "",
        detail: str = "",
        axes: Sequence[Axis] = (),
        sizes: Sequence[int] = (),
    ) -> bool:
        """Writes down whether a claim holds, and gives that."""
        finding = Finding(FindingKind.CONFIRMED if holds else FindingKind.REFUTED, detail)
        self.record(axes, sizes, finding=finding, claim=claim, argument=argument)
        return holds

    def note_unknown(self, what: str, spent: SpentError) -> None:
        """Writes down, once, what was not tested since the budget ended."""
        spot = BlindSpot(BlindKind.BUDGET, detail=what, limit=spent.limit)
        if spot not in self.unknown:
            self.unknown.append(spot)
