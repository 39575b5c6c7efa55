"""Does a relation hold, or did a few calls agree by chance? The model is run at fresh sizes.

First at sizes that obey all relations: where the model refuses them, a relation is false, and the
next best explanation is tried. Then each relation is broken alone. A relation is dropped only if
the model accepts a violation and the added elements change its output, in both directions, or in one
where it refuses the other: an index has at most as many columns as a tensor. A model that refuses both
confirms the relation, and so does one that ignores the surplus, as of a mask beyond the tokens. The
axes of a dropped relation get symbols of their own.

An example: calls had ``ids`` of 5 and of 7 tokens, each with ``tags`` as long. All relations are obeyed by a
call with 9 and 9. Then ``tags.shape[1] == ids.shape[1]`` is broken alone::

    ids    tags    the model                                what follows
    9      10      refuses                                  the other direction is tried
    9      10      accepts, and its output is as before     it ignores the surplus: confirmed as well
    9      10      accepts, and its output is another one   the other direction is tried
    10     9       accepts, and its output is another one   dropped: ``tags`` gets a symbol of its own
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

from ..core.errors import ExportError, OnlookerError
from ..core.experiment import Finding, FindingKind
from ..core.plan import Plan
from ..core.sizes.expression import Expression, Sizes
from ..core.spec import Axis, axis_sizes
from ..infer.build import build_plan
from ..infer.doubtful import DoubtfulRelation, alternatives, doubtful_relations, readings_without
from ..infer.mine import Derived, Exclusions, Mined, mine
from ..infer.samples import Row, Table, row_of_values
from ..infer.sizes import choose_sizes, is_general, roomy_sizes
from ..lab.demanded_sizes import demands_of
from ..lab.example import Example, find_example, sizes_of_trace
from ..lab.lab import Lab, SpentError
from ..lab.small_sizes import representative
from ..materialise.arguments import Calls, leaf_values
from ..materialise.domains import domains_of
from ..observing.store import Sample
from .axes.classes import size_of
from .broken_relation import BrokenRelation
from .draft import Draft
from .family import Family

__all__ = ["Relations"]

logger = logging.getLogger(__name__)

#: choices of sizes that obey all relations, of which the model must take one
_CHOICES = 3
#: sizes at which a relation of little evidence is tried
_GUESSES = 8
_KEPT_BECAUSE = {
    FindingKind.REFUSED: "the model refuses it otherwise",
    FindingKind.UNREAD: "the model does not read what is too long",
    FindingKind.NO_SIZES: "no sizes break it",
}


class Relations(Family):
    """A relation between axes may be a coincidence: rows that break a false one, labels that
    confirm the others.
    """

    question = "which relations between axes are a coincidence?"
    all_tested = "every relation was tested"
    most_runs = 48

    def __init__(self, draft: Draft, samples: Sequence[Sample], lab: Lab) -> None:
        super().__init__(draft, samples, lab)
        self._domains = domains_of(self._samples)
        parameters = lab.signature.parameters
        self._variadic = {one.name for one in parameters if one.kind.startswith("VAR")}
        self._tested: set[str] = set()
        self._confirmed: dict[Axis, str] = {}
        self._guess: Exclusions | None = None
        #: True where a run on symbols has told that nothing ties sizes; None before there was one
        self._asked_for: bool | None = None
        self._n_tested = 0
        #: True where the model took no sizes but watched ones
        self._at_most = False

    def drafts(self) -> Iterator[Draft]:
        """The draft after each relation that was tested."""
        if not self._samples:
            return
        try:
            while self._step():
                yield self._current()
        except SpentError:
            yield self._current()
            raise
        yield self._current()

    def _current(self) -> Draft:
        return replace(self._draft, confirmed=dict(self._confirmed), exclusions=self._guess)

    def _step(self) -> bool:
        """True when a relation turned out to be false: a row says so, and the table has to be
        read again.
        """
        table = self._draft.table
        mined = mine(table)
        doubtful = doubtful_relations(mined, self._variadic)
        untested = [doubt for doubt in doubtful if doubt.text not in self._tested]
        untested = [doubt for doubt in untested if not self._may_be_absent(doubt)]
        is_known = self._n_tested > 0 and self._guess is None
        if not untested and (is_known or len(mined.free) < 2):
            return False
        if untested or self._n_tested:
            example = self._example(self._plan(table, None))
        else:  # nothing is broken: the sizes may be those of the trace
            plan = self._draft.plan()
            choices = sizes_of_trace(Calls(plan, self._samples), self._lab)
            example = self._example(plan, choices)
        if example is None:
            if self._is_demanded(table, mined) or self._is_replaced(table, mined):
                return True
            if self._guess is None:
                example = self._watched_example(self._plan(table, None))
                self._at_most = True
        if example is None:
            return False
        self._guess = None
        for doubt in untested:
            self._tested.add(doubt.text)
            if self._is_coincidence(table, doubt, example):
                return True
        return False

    def _may_be_absent(self, doubt: DoubtfulRelation) -> bool:
        """True for the sizes of what a call may lack: they must follow from what it has, or
        nothing can stand in.
        """
        fills = self._draft.fills
        found = [fills.get(axis.path) for axis in doubt.moved]
        return all(fill is not None and fill.kind in ("ones", "zeros") for fill in found)

    def _plan(self, table: Table, exclusions: Exclusions | None) -> Plan:
        draft = self._draft
        overrides = draft.overrides
        return build_plan(
            draft.union,
            table,
            draft.fills,
            ranges=overrides.ranges,
            exclusions=exclusions,
            given=overrides.name_of,
        )

    def _example(self, plan: Plan, choices: Iterable[Sizes] | None = None) -> Example | None:
        """A call of general sizes that obey the plan, or None where the model refuses all that were
        tried. Without ``choices`` the sizes have room to be made smaller.

        :raises SpentError: when the budget has ended
        """
        calls = Calls(plan, self._samples)
        most = 1 if self._guess is not None else _CHOICES
        if choices is None:
            roomy = roomy_sizes(plan, self._n_tested)
            choices = representative(calls, self._lab, roomy)
        for choice in islice(choices, most):
            try:
                return find_example(
                    calls, self._lab, choices=[choice], necessary=False, shapes_only=True
                )
            except OnlookerError as error:
                logger.debug("%s", error)
        return None

    def _watched_example(self, plan: Plan) -> Example | None:
        """A watched call of general sizes, where the model takes no others that obey the plan: they may be
        the greatest that a table of it has.
        """
        calls = Calls(plan, self._samples)
        watched = [calls.sizes_of(sample) for sample in calls.own]
        general = [sizes for sizes in watched if is_general(plan, sizes)]
        return self._example(plan, sorted(general, key=lambda sizes: sum(sizes.values())))

    # --------------------------------------------------------------------------- other explanations

    def _is_demanded(self, table: Table, mined: Mined) -> bool:
        """True when a run on symbols tells relations that the table did not: it is read again, and so are
        the tests that the model may have refused for their sake.
        """
        if self._asked_for is not None:
            return False
        calls = Calls(self._plan(table, None), self._samples)
        sample = max(calls.own, key=lambda sample: _generality(mined, sample))
        demands = demands_of(calls, sample, mined.columns, self._lab)
        self._asked_for = demands.ties_none
        told = mine(replace(table, demands=demands))
        if not demands.divided and _expressions(told) == _expressions(mined):
            return False
        self._draft = replace(self._draft, demands=demands)
        self._tested.clear()
        self._confirmed.clear()
        return True

    def _is_replaced(self, table: Table, mined: Mined) -> bool:
        """True when the model takes sizes that obey another explanation of the table, and not
        the first one.
        """
        for exclusions in alternatives(table):
            if self._guess is not None and not exclusions.guessing:
                continue
            if self._asked_for and exclusions.guessing:
                return False
            plan = self._plan(table, exclusions)
            if exclusions.guessing:
                found = self._is_guessed(table, mined, exclusions, plan)
                if found is None:
                    continue
                return found
            example = self._example(plan)
            if example is None:
                continue
            row = row_of_values(self._label, example.values)
            false = tuple(
                d.column.axes[0] for d in mined.derived.values() if not _holds(d, mined, row)
            )
            if false:
                self._reject(row, false, FindingKind.ACCEPTED, "and not as the calls have it")
                return True
        return False

    def _is_guessed(
        self, table: Table, mined: Mined, exclusions: Exclusions, plan: Plan
    ) -> bool | None:
        """True when sizes that obey a guess are new and accepted, None when all are refused.

        Where they are accepted and say nothing new, the guess is the best that there is: it is what
        the plan says.
        """
        known = {derived.column.axes[0] for derived in mined.derived.values()}
        guessed = [derived.column.axes[0] for derived in mine(table, exclusions).derived.values()]
        axes = tuple(axis for axis in guessed if axis not in known)
        for offset in range(_GUESSES):
            with contextlib.suppress(ExportError):
                example = self._example(plan, [choose_sizes(plan, offset=offset)])
                if example is None:
                    return None
                self._guess = exclusions
                row = row_of_values(self._label, example.values)
                if row.sizes not in [probe.sizes for probe in self._draft.probes]:
                    self._reject(row, axes, FindingKind.ACCEPTED)
                    return True
        return False if self._guess is not None else None

    # --------------------------------------------------------------------------------- one relation

    def _is_coincidence(self, table: Table, doubt: DoubtfulRelation, example: Example) -> bool:
        """True when the model takes sizes that break a relation, whichever side is the longer
        one, and reads them.
        """
        found = []
        for exclusions in readings_without(table, doubt):
            plan = self._plan(table, exclusions)
            broken = BrokenRelation(
                plan, doubt, example, self._lab, self._domains, at_most=self._at_most
            )
            found.append(broken.finding())
            if found[-1] is FindingKind.ACCEPTED:
                row = row_of_values(self._label, broken.accepted)
                self._reject(row, doubt.moved, FindingKind.REFUTED, claim=doubt.text)
                return True
        is_of_others = not doubt.kept and all(kind is FindingKind.REFUSED for kind in found)
        if is_of_others and self._is_demanded(table, mine(table)):
            return True
        label = self._label
        sizes = [size_of(axis, example.values) for axis in doubt.moved]
        finding = Finding(FindingKind.CONFIRMED, _KEPT_BECAUSE[found[-1]])
        self._record(doubt.moved, sizes, finding, label, doubt.text)
        if all(kind is FindingKind.REFUSED for kind in found):
            self._confirmed.update(dict.fromkeys(doubt.moved, label))
        return False

    @property
    def _label(self) -> str:
        return f"relation probe {self._n_tested}"

    def _reject(
        self,
        row: Row,
        axes: Sequence[Axis],
        kind: FindingKind,
        detail: str = "",
        *,
        claim: str = "",
    ) -> None:
        """Adds a row of sizes that break a relation."""
        self._record(
            axes, [row.sizes[axis] for axis in axes], Finding(kind, detail), row.label, claim
        )
        self._draft = self._draft.with_probes(row)

    def _record(
        self, axes: Sequence[Axis], sizes: Sequence[int], finding: Finding, label: str, claim: str
    ) -> None:
        self._lab.record(axes, sizes, finding=finding, label=label, claim=claim)
        self._n_tested += 1


def _expressions(mined: Mined) -> dict[str, Expression]:
    """What each class that follows from others is."""
    return {name: derived.expression for name, derived in mined.derived.items()}


def _generality(mined: Mined, sample: Sample) -> int:
    """The number of distinct sizes above 1 that classes of axes have in a call."""
    sizes = axis_sizes(leaf_values(sample).items())
    own = {sizes[column.axes[0]] for column in mined.columns if column.axes[0] in sizes}
    return len(own - {0, 1})


def _holds(derived: Derived, mined: Mined, row: Row) -> bool:
    """True when a row obeys a relation between classes, or does not have all of them."""
    sizes = {}
    for column in mined.columns:
        size = row.sizes.get(column.axes[0])
        if size is not None:
            sizes[column.name] = size
    name, expression = derived.column.name, derived.expression
    if not {name, *expression.symbols} <= set(sizes):
        return True
    return expression.evaluate(sizes) == sizes[name]
