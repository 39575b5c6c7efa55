"""Does a relation hold, or did a few calls agree by chance? The model is asked at fresh sizes.

First at sizes that obey all relations: where the model refuses them, a relation is false, and the next best
explanation is tried. Then each relation is broken alone. A model that refuses confirms it; so does one that does
not read what is too long, as a mask beyond the tokens. Where both sides may be longer than the relation says, and
the model reads what was added, the relation was a coincidence, and the axes become symbols of their own.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

from ..core.errors import ExportError, OnlookerError
from ..core.plan import Plan, Probe
from ..core.spec import Axis
from ..infer.build import build_plan
from ..infer.doubts import Doubt, denials, doubts, readings
from ..infer.mine import Derived, Mined, Without, mine
from ..infer.samples import Row, Table, row_of_values
from ..infer.sizes import Sizes, choose_sizes, expressed_sizes
from ..observe.store import Sample
from .broken import REFUSED, Broken, SpentRelationsError
from .classes import size_of
from .example import Example, find_example, size_choices
from .pins import Pins
from .regimes import Regime
from .subject import Subject

__all__ = ["confirm_relations"]

logger = logging.getLogger(__name__)

#: the most runs of the model for the relations of one graph, and the share of the seconds of all probes
_MOST_RUNS = 48
_SHARE = 0.25
#: choices of sizes that obey all relations, of which the model must take one
_CHOICES = 3
#: a size that can be made smaller
_ROOM = 3
_OFFSETS = (2, 0, 3, 1, 4)
#: sizes at which a relation of little evidence is tried
_GUESSES = 8


def confirm_relations(regime: Regime, samples: Sequence[Sample], subject: Subject, pins: Pins) -> Regime:
    """The regime with what the model says about its relations: rows that break a false one, labels of the others."""
    calls = {call.index for form in regime.union.forms for call in form.calls}
    own = [sample for sample in samples if sample.call.index in calls]
    search = _Search(regime, own, subject, pins)
    try:
        while own and search.step():
            logger.debug("%s", search.trace[-1])
    except SpentRelationsError:
        blind = (*search.regime.blind, "the budget of probes ended before every relation was tried")
        search.regime = replace(search.regime, blind=blind)
    trace = (*search.regime.trace, *search.trace)
    return replace(search.regime, confirmed=search.confirmed, trace=trace, reading=search.guess)


class _Search:
    """One regime, its relations tried one after the other."""

    def __init__(self, regime: Regime, samples: Sequence[Sample], subject: Subject, pins: Pins) -> None:
        self.regime, self.samples, self.subject = regime, samples, subject
        self.runs, self.most = 0, min(pins.probes, _MOST_RUNS)
        self.deadline = time.monotonic() + _SHARE * pins.seconds
        self.confirmed: dict[Axis, str] = {}
        self.trace: list[Probe] = []
        self._settled: set[str] = set()
        self.guess: Without | None = None

    def spend(self) -> None:
        """Counts a run of the model.

        :raises SpentRelationsError: when the budget allows none
        """
        if self.runs >= self.most or time.monotonic() > self.deadline:
            raise SpentRelationsError
        self.runs += 1

    def step(self) -> bool:
        """True when a relation turned out to be false: a row says so, and the table has to be read again."""
        table = self.regime.table
        mined = mine(table)
        todo = [d for d in doubts(mined) if d.text not in self._settled and not self._may_be_absent(d)]
        is_known = bool(self.trace) and self.guess is None
        if not todo and (is_known or len(mined.free) < 2):
            return False
        example = self._example(self._plan(table, None))
        if example is None:
            return self._replaced(table, mined)
        self.guess = None
        for doubt in todo:
            self._settled.add(doubt.text)
            logger.info("relation probe %d of at most %d: %s", self.runs + 1, self.most, doubt.text)
            if self._is_chance(table, doubt, example):
                return True
        return False

    def _may_be_absent(self, doubt: Doubt) -> bool:
        """True for the sizes of what a call may lack: they must follow from what it has, or nothing can stand in."""
        fills = self.regime.fills
        return any(axis.path in fills and fills[axis.path].kind in ("ones", "zeros") for axis in doubt.moved)

    def _plan(self, table: Table, without: Without | None) -> Plan:
        regime = self.regime
        return build_plan(regime.union, table, regime.fills, ranges=regime.pins.ranges, without=without)

    def _example(self, plan: Plan, choices: Iterable[Sizes] | None = None) -> Example | None:
        """A call of general sizes that obey the plan, or None where the model refuses all that were tried."""
        most = 1 if self.guess is not None else _CHOICES
        for choice in islice(_spacious(plan, len(self.trace)) if choices is None else choices, most):
            self.spend()
            try:
                return find_example(plan, self.samples, self.subject, choices=[choice])
            except OnlookerError as error:
                logger.debug("%s", error)
        return None

    def _replaced(self, table: Table, mined: Mined) -> bool:
        """True when the model takes sizes that obey another explanation of the table, and not the first one."""
        for without in denials(table):
            if self.guess is not None and not without.guessing:
                continue
            plan = self._plan(table, without)
            if without.guessing:
                found = self._guessed(table, mined, without, plan)
                if found is None:
                    continue
                return found
            example = self._example(plan)
            if example is None:
                continue
            row = row_of_values(self._label, example.values)
            false = tuple(d.column.axes[0] for d in mined.derived.values() if not _holds(d, mined, row))
            if false:
                self._reject(row, false, "accepted, and not as the calls have it")
                return True
        return False

    def _guessed(self, table: Table, mined: Mined, without: Without, plan: Plan) -> bool | None:
        """True when sizes that obey a guess are new and accepted, None when all are refused.

        Where they are accepted and say nothing new, the guess is the best that there is: it is what the plan says.
        """
        known = {derived.column.axes[0] for derived in mined.derived.values()}
        axes = tuple(d.column.axes[0] for d in mine(table, without).derived.values() if d.column.axes[0] not in known)
        for offset in range(_GUESSES):
            with contextlib.suppress(ExportError):
                example = self._example(plan, [choose_sizes(plan, offset=offset)])
                if example is None:
                    return None
                self.guess = without
                row = row_of_values(self._label, example.values)
                if row.sizes not in [probe.sizes for probe in self.regime.probes]:
                    self._reject(row, axes, "accepted")
                    return True
        return False if self.guess is not None else None

    def _is_chance(self, table: Table, doubt: Doubt, example: Example) -> bool:
        """True when the model takes sizes that break a relation, whichever side is the longer one, and reads them."""
        outcomes = []
        for without in readings(table, doubt):
            broken = Broken(self._plan(table, without), doubt, example, self.subject, self.spend)
            outcomes.append(broken.outcome())
            if not outcomes[-1]:
                self._reject(row_of_values(self._label, broken.accepted), doubt.moved, f"{doubt.text} was chance")
                return True
        label = self._label
        sizes = tuple(size_of(axis, example.values) for axis in doubt.moved)
        self.trace.append(Probe(doubt.moved, sizes, f"{doubt.text} holds: {outcomes[-1]} otherwise", label))
        if outcomes == [REFUSED] * len(outcomes):
            self.confirmed.update(dict.fromkeys(doubt.moved, label))
        return False

    @property
    def _label(self) -> str:
        return f"relation probe {len(self.trace)}"

    def _reject(self, row: Row, axes: tuple[Axis, ...], outcome: str) -> None:
        sizes = tuple(row.sizes[axis] for axis in axes)
        self.trace.append(Probe(axes, sizes, outcome, row.label))
        self.regime = replace(self.regime, probes=(*self.regime.probes, row))


def _spacious(plan: Plan, number: int) -> Iterator[Sizes]:
    """General sizes, first such as leave room to be made smaller; others for each ``number``, so that rows differ."""
    for offset in (_OFFSETS[number % len(_OFFSETS)], 2, 4, 6):
        with contextlib.suppress(ExportError):
            sizes = choose_sizes(plan, offset=offset)
            if min(expressed_sizes(plan, sizes), default=_ROOM) >= _ROOM:
                yield sizes
    yield from size_choices(plan)


def _holds(derived: Derived, mined: Mined, row: Row) -> bool:
    """True when a row obeys a relation between classes, or does not have all of them."""
    sizes = {c.name: row.sizes[c.axes[0]] for c in mined.columns if c.axes[0] in row.sizes}
    if derived.column.name not in sizes or not set(derived.expression.symbols) <= set(sizes):
        return True
    return derived.expression.evaluate(sizes) == sizes[derived.column.name]
