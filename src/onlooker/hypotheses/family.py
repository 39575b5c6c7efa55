"""The base of all families of hypotheses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from ..core.call import Join, Values
from ..core.experiment import BlindKind, BlindSpot, Finding, FindingKind
from ..core.sizes.expression import Sizes
from ..infer.sizes import is_possible
from ..lab.lab import Lab, SpentError
from ..materialise.arguments import Calls
from ..observing.store import Sample
from .draft import Draft

__all__ = ["Family", "FormFamily"]


class FormFamily:
    """One kind of claim about the form of all calls: it is tested before there is a plan.

    ``question`` says in words what is tested, ``all_tested`` what is not true where the budget ended
    before.
    """

    question: ClassVar[str]
    all_tested: ClassVar[str]

    def __init__(self, samples: Sequence[Sample], lab: Lab) -> None:
        """The family for the kept calls; nothing is run yet."""
        self._samples, self._lab = samples, lab

    def joins(self) -> Iterator[Join]:
        """The parts of calls that graphs take in another form.

        :raises SpentError: when the budget has ended
        """
        raise NotImplementedError


class Family:
    """One kind of claim about the calls of one graph: it proposes instances, tests them in the Lab,
    and applies what holds.

    ``question`` and ``all_tested`` are as in :class:`FormFamily`: "every size was tested at 0".
    ``most_runs`` is the most that the family may take of the default budget.
    """

    question: ClassVar[str]
    all_tested: ClassVar[str] = ""
    most_runs: ClassVar[int]

    def __init__(self, draft: Draft, samples: Sequence[Sample], lab: Lab) -> None:
        """The family for one draft and its kept calls; nothing is run yet."""
        self._draft, self._lab = draft, lab
        self._samples: Sequence[Sample] = draft.own(samples)

    def drafts(self) -> Iterator[Draft]:
        """Drafts that know more and more; each one holds all that was found so far.

        :raises SpentError: when the budget, or the share of the family, has ended
        """
        raise NotImplementedError

    def untested(self, spent: SpentError) -> BlindSpot:
        """Returns the blind spot for claims that were not tested when the budget ended."""
        return BlindSpot(BlindKind.BUDGET, detail=self.all_tested, limit=spent.limit)

    def _taken(self, calls: Calls, changed: Sizes, why: str, label: str = "") -> Values | None:
        """The values of the last call with some sizes changed; None where the model refuses them.

        The experiment is written down, under the label where the model takes the call.
        """
        sizes = {**calls.sizes_of(self._samples[-1]), **changed}
        if not is_possible(calls.plan, sizes):
            return None
        values = calls.values(sizes)
        is_taken = self._lab.takes(calls.arguments_of(values), why=why)
        axes = {axis: changed[name] for name in changed for axis in calls.plan.axes_of(name)[:1]}
        kind = FindingKind.ACCEPTED if is_taken else FindingKind.REFUSED
        label = label if is_taken else ""
        self._lab.record([*axes], [*axes.values()], finding=Finding(kind), label=label)
        return values if is_taken else None
