"""Axes whose extra elements affect the output only if another axis grows by the same amount.

A mask over past and new tokens, of one call: the model takes it too long, and too short, and
nothing says that its length is their sum. The surplus of the mask changes the output only when the
tokens grow too: the axes are co-dependent, and the axis of the tokens is the driver.

In calls of decoding the mask grows with the past, and is longer than the past by the length of a prompt that all
calls have: it is co-dependent with what holds the prompt.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

from ...core.experiment import Experiment, FindingKind
from ...core.spec import Axis
from ...infer.relations import group_equal, shared
from ...infer.samples import Row, Table
from .trials import AxisTrials

__all__ = ["with_codependent_axes"]


@dataclass(frozen=True, slots=True)
class _Change:
    """A change of a class of axes that was tried, and the row that it gave where the model
    accepted it.
    """

    record: Experiment
    row: Row | None = None

    @property
    def axes(self) -> tuple[Axis, ...]:
        return self.record.axes

    def step(self, trials: AxisTrials) -> int:
        """By how much the axes grow, which is less than 0 where they shrink."""
        return self.record.sizes[0] - trials.size(self.axes[0])


def with_codependent_axes(
    trials: AxisTrials, rows: Sequence[Row], left: Collection[Axis], table: Table
) -> tuple[list[Row], set[Axis]]:
    """The rows, in which co-dependent axes have changed as well, and all co-dependent axes and
    their drivers.

    ``left`` are the axes that did not change alone: a class of them may change with its
    co-dependent axes; and so may axes that the ``table`` has as others and a number. A row that the
    model refuses with its co-dependent axes is left out, and so are those in which one changed
    alone.

    :raises SpentError: when the budget has ended
    """
    by_label = {record.label: record for record in trials.records if record.label}
    accepted = [_Change(by_label[row.label], row) for row in rows]
    refused_with_others = [
        _Change(record)
        for record in trials.records
        if record.finding.kind is FindingKind.REFUSED and set(record.axes) & set(left)
    ]
    refused = [change for change in refused_with_others if set(change.axes) <= set(left)]
    found: set[Axis] = set()
    for axes in list(_candidates(trials, accepted, refused, left)):
        if found & {*axes}:
            continue
        drivers = _drivers(trials, axes, [*accepted, *refused])
        if not drivers:
            continue
        accepted = _moved_together(trials, axes, drivers, accepted)
        found |= {*axes}
        for driver in drivers:
            found |= {*driver.axes}
    for axes, number in _sums(table):
        drivers = [
            change
            for change in _drivers(trials, axes, [*accepted, *refused_with_others])
            if 1 < trials.size(change.axes[0]) <= number
        ]
        accepted = _moved_together(trials, axes, drivers, accepted)
        for driver in drivers:
            found |= {*driver.axes}
    return [change.row for change in accepted if change.row is not None], found


def _sums(table: Table) -> Iterator[tuple[tuple[Axis, ...], int]]:
    """The axes that are longer than others by a number, the same in all calls, and this number."""
    columns = [column for column in group_equal(table) if not column.is_first]
    for longer, other in permutations(columns, 2):
        rows = shared(longer, other)
        numbers = {one - two for one, two in rows}
        if len(rows) > 1 and len(numbers) == 1 and min(numbers) > 1:
            yield longer.axes, min(numbers)


def _candidates(
    trials: AxisTrials,
    accepted: Sequence[_Change],
    refused: Sequence[_Change],
    left: Collection[Axis],
) -> Iterator[tuple[Axis, ...]]:
    """The classes that were longer alone, and whose surplus nothing read; then each of their axes.

    A float that is read at all counts as accepted, since nothing reads the last columns of some
    images. Whether it is co-dependent matters only where another argument was refused.
    """
    unread = dict.fromkeys(
        record.axes for record in trials.records if record.finding.kind is FindingKind.UNREAD
    )
    classes = [axes for axes in unread if set(axes) <= set(left)]
    for change in _least_growths(trials, accepted):
        paths = {axis.path for axis in change.axes}
        if len(paths) > 1:
            continue
        root = change.axes[0].path.root
        other_is_refused = any(axis.path.root != root for one in refused for axis in one.axes)
        if other_is_refused and not trials.reads(change.axes, change.record.sizes, change.axes):
            classes.append(change.axes)
    yield from classes
    single = [(axis,) for axes in classes if len(axes) > 1 for axis in axes]
    yield from dict.fromkeys(single)


def _drivers(trials: AxisTrials, axes: Sequence[Axis], changes: Sequence[_Change]) -> list[_Change]:
    """The growths of other axes with which the surplus of ``axes`` is read."""
    others = [change for change in _least_growths(trials, changes) if not {*change.axes} & {*axes}]
    drivers = []
    for change in others:
        grown = trials.grown(axes, change.step(trials))
        together = (*change.axes, *axes)
        if trials.reads(together, [*change.record.sizes, *grown], axes):
            drivers.append(change)
    return drivers


def _least_growths(trials: AxisTrials, changes: Iterable[_Change]) -> list[_Change]:
    """The least growth of each class."""
    growing = [change for change in changes if change.step(trials) > 0]
    growing.sort(key=lambda change: change.step(trials), reverse=True)
    least: dict[tuple[Axis, ...], _Change] = {}
    for change in growing:
        least[change.axes] = change
    return list(least.values())[::-1]


def _moved_together(
    trials: AxisTrials,
    axes: Sequence[Axis],
    drivers: Sequence[_Change],
    accepted: Sequence[_Change],
) -> list[_Change]:
    """The accepted changes, with the co-dependent axes moved along with their drivers."""
    driving = {driver.axes for driver in drivers}
    others, to_repeat = [], []
    for change in accepted:
        if change.axes in driving:
            to_repeat.append(change)
        elif not {*change.axes} <= {*axes}:
            others.append(change)
    to_repeat += [driver for driver in drivers if driver.row is None]
    for change in to_repeat:
        together = _together(trials, axes, change)
        if together is not None:
            others.append(together)
    return others


def _together(trials: AxisTrials, axes: Sequence[Axis], driver: _Change) -> _Change | None:
    """The change of the driver and of its co-dependent axes, where the model accepts it."""
    grown = trials.grown(axes, driver.step(trials))
    if min(grown) < 1:
        return None
    row = trials.probe((*driver.axes, *axes), [*driver.record.sizes, *grown])
    return None if row is None else _Change(trials.records[-1], row)
