"""An axis that nothing reads where it is longer alone, and that is read where it grows together with another one.

A mask over past and new tokens, of one call: the model takes it too long, and too short, and nothing says that it is
their sum. What has grown is read only in company.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..core.plan import Probe
from ..core.spec import Axis
from ..infer.samples import Row
from .bench import REFUSED, UNREAD, Bench

__all__ = ["with_followers"]


@dataclass(frozen=True, slots=True)
class _Change:
    """A change of a class of axes that was tried, and the row that it gave where the model accepted it."""

    record: Probe
    row: Row | None = None

    @property
    def axes(self) -> tuple[Axis, ...]:
        return self.record.axes

    def step(self, bench: Bench) -> int:
        """By how much the axes grow, which is less than 0 where they shrink."""
        return self.record.sizes[0] - bench.size(self.axes[0])


def with_followers(bench: Bench, rows: Sequence[Row], left: Collection[Axis]) -> tuple[list[Row], set[Axis]]:
    """The rows, in which what follows has changed as well, and all axes that follow, or are followed.

    ``left`` are the axes that did not change alone: with its followers such a class may. A row that the model
    refuses with its followers is left out, and so are those in which a follower changed alone.

    :raises SpentError: when the budget of probes ends before
    """
    found = {record.label: record for record in bench.records if record.label}
    accepted = [_Change(found[row.label], row) for row in rows]
    refused = [_Change(r) for r in bench.records if r.outcome.startswith(REFUSED) and set(r.axes) <= set(left)]
    settled: set[Axis] = set()
    for axes in list(_candidates(bench, accepted, refused, left)):
        tried = [change for change in _growing(bench, [*accepted, *refused]) if not {*change.axes} & {*axes}]
        leaders = [] if settled & {*axes} else [change for change in tried if _follows(bench, axes, change)]
        if not leaders:
            continue
        moved = {leader.axes for leader in leaders}
        others = [change for change in accepted if change.axes not in moved and not {*change.axes} <= {*axes}]
        new = [change for change in accepted if change.axes in moved]
        new += [leader for leader in leaders if leader.row is None]
        together = [_together(bench, axes, change) for change in new]
        accepted = [*others, *(change for change in together if change is not None)]
        settled |= {*axes, *(axis for leader in leaders for axis in leader.axes)}
    return [change.row for change in accepted if change.row is not None], settled


def _candidates(
    bench: Bench, accepted: Sequence[_Change], refused: Sequence[_Change], left: Collection[Axis]
) -> Iterator[tuple[Axis, ...]]:
    """The classes that were longer alone, and of which nothing read what was added; then each of their axes.

    A float that is read at all counts as accepted, since nothing reads the last columns of some images. Whether it
    follows matters only where another argument was refused.
    """
    unread = [record.axes for record in bench.records if record.outcome == UNREAD]
    classes = [axes for axes in dict.fromkeys(unread) if set(axes) <= set(left)]
    for change in _growing(bench, accepted):
        (path, *more) = {axis.path for axis in change.axes}
        other = any(axis.path.root != path.root for one in refused for axis in one.axes)
        if other and not more and not bench.reads(change.axes, change.record.sizes, change.axes):
            classes.append(change.axes)
    yield from classes
    yield from dict.fromkeys((axis,) for axes in classes for axis in axes if len(axes) > 1)


def _growing(bench: Bench, changes: Iterable[_Change]) -> list[_Change]:
    """The least growth of each class."""
    growing = sorted((one for one in changes if one.step(bench) > 0), key=lambda one: one.step(bench))
    return list({one.axes: one for one in reversed(growing)}.values())[::-1]


def _follows(bench: Bench, axes: Sequence[Axis], leader: _Change) -> bool:
    sizes = [bench.size(axis) + leader.step(bench) for axis in axes]
    return bench.reads((*leader.axes, *axes), [*leader.record.sizes, *sizes], axes)


def _together(bench: Bench, axes: Sequence[Axis], leader: _Change) -> _Change | None:
    """The change of the leader and of what follows it, where the model accepts it."""
    sizes = [bench.size(axis) + leader.step(bench) for axis in axes]
    if min(sizes) < 1:
        return None
    row = bench.probe((*leader.axes, *axes), [*leader.record.sizes, *sizes])
    return None if row is None else _Change(bench.records[-1], row)
