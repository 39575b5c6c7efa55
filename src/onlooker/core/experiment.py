"""One experiment with the model and what came of it, and what no experiment could tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .drawing.alike import folded
from .spec import Axis
from .support.enums import StrEnum

__all__ = ["BlindKind", "BlindSpot", "Experiment", "Finding", "FindingKind", "shortened"]

#: as many axes are named in full; of more, the first ones
_MOST_NAMED = 4


class FindingKind(StrEnum):
    """The results that an experiment can have."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    UNREAD = "unread"
    ROWS_CHANGED = "rows-changed"
    OTHER_FORM = "other-form"
    NO_SIZES = "no-sizes"
    CONFIRMED = "confirmed"
    REFUTED = "refuted"


_WORDS = {
    FindingKind.ACCEPTED: "accepted",
    FindingKind.REFUSED: "refused",
    FindingKind.UNREAD: "nothing reads it",
    FindingKind.ROWS_CHANGED: "the rows before come out otherwise",
    FindingKind.OTHER_FORM: "the result has another form",
    FindingKind.NO_SIZES: "no sizes test it",
    FindingKind.CONFIRMED: "confirmed",
    FindingKind.REFUTED: "refuted",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of an experiment with a detail: the error of a refusal, the reason of a verdict.

    >>> str(Finding(FindingKind.REFUSED, "ValueError: too long"))
    'refused, ValueError: too long'
    """

    kind: FindingKind
    detail: str = ""

    def __str__(self) -> str:
        words = _WORDS[self.kind]
        return f"{words}, {self.detail}" if self.detail else words


@dataclass(frozen=True, slots=True)
class Experiment:
    """One experiment: the axes that were changed together, the new size of each, and what was
    found.

    ``claim`` says what was tested where that is more than "these axes may have these sizes", and
    ``argument`` names the argument that a claim without axes is about. ``label`` names the row of
    sizes that an accepted experiment adds to the :class:`~onlooker.core.plan.Evidence`; a refused
    one has none.
    """

    axes: tuple[Axis, ...]
    sizes: tuple[int, ...]
    finding: Finding
    label: str = ""
    claim: str = ""
    argument: str = ""

    def is_about(self, axis: Axis) -> bool:
        """True when the experiment changed the axis, or tested a claim about its whole argument."""
        return axis in self.axes or (
            not self.axes and bool(self.argument) and self.argument == axis.path.root
        )

    def __str__(self) -> str:
        return self.text()

    def text(self, *, full: bool = False) -> str:
        """The experiment in one line; axes of items of a list that had the same size are one,
        unless in ``full``.
        """
        changes = [f"{axis} = {size}" for axis, size in zip(self.axes, self.sizes, strict=True)]
        what = ", ".join(changes if full else folded(changes))
        name = self.label or "a probe"
        where = f"{name} ({what})" if what else name
        found = f"{self.claim}: {self.finding}" if self.claim else str(self.finding)
        return f"{where}: {found}"


class BlindKind(StrEnum):
    """The reasons for which something is not known."""

    BUDGET = "budget"
    NO_BATCH = "no-batch"
    MASK_NEVER_PASSED = "mask-never-passed"


@dataclass(frozen=True, slots=True)
class BlindSpot:
    """A question that neither calls nor experiments could answer, with the run that would.

    ``axes`` and ``argument`` say what it is about. ``detail`` is, for ``BUDGET``, what was not
    tested, with ``limit`` the end of the budget, and for ``NO_BATCH`` what became of the
    experiment.
    """

    kind: BlindKind
    axes: tuple[Axis, ...] = ()
    argument: str = ""
    detail: str = ""
    limit: str = ""

    def __str__(self) -> str:
        if self.kind is BlindKind.BUDGET:
            what = f"{shortened(self.axes)} could be probed" if self.axes else self.detail
            if self.limit == "memory":
                return f"the memory of this machine ended before {what}: watch smaller calls"
            return (
                f"the budget of {self.limit} ended before {what}: raise budget=, or watch other"
                " sizes"
            )
        if self.kind is BlindKind.NO_BATCH:
            return f"no batch: {self.detail}; run the model with another number of rows"
        return (
            f"{self.argument} was never passed, and a mask of ones changes the result: run one"
            " padded batch"
        )


def shortened(axes: Sequence[Axis]) -> str:
    """The names of some axes; of many only the first three, and how many more."""
    names = folded(map(str, axes))
    if len(names) > _MOST_NAMED:
        names = [*names[:3], f"{len(names) - 3} more"]
    return ", ".join(names)
