"""May an axis that never changed change? The model is asked: resize it everywhere at once and run."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

from ..core.path import Path
from ..core.spec import Axis
from ..infer.relations import varies
from ..infer.samples import Row
from ..materialise.arguments import leaf_values, materialise
from ..materialise.counting import sizes_of
from ..observe.store import Sample
from .across import mixed_classes, multiples
from .bench import Bench, SpentError
from .classes import batches, by_size, is_settled_state, parts, sides, still_axes
from .followers import with_followers
from .pins import PINNED, Pins
from .regimes import Regime
from .steps import least_step, likely_steps
from .subject import Subject

__all__ = ["pin_axes", "probe_axes"]

logger = logging.getLogger(__name__)
_MOST_PAIRED = 8


def probe_axes(regime: Regime, samples: Sequence[Sample], subject: Subject, pins: Pins) -> Regime:
    """The regime with a row for every class of axes that the model lets change.

    The classes are, in this order: first dimensions of the same size; other axes of the same size, over all
    arguments, then without some, then argument by argument; then what follows such a class; then pairs of classes,
    and what changes together though it stands in other places.
    Axes that are pinned as dynamic go with a class of the same size, and are no class alone.
    """
    base = _base_values(regime, samples)
    if base is None:
        return regime
    try:
        bench = Bench(regime.plan(), base, subject, pins)
    except Exception as error:
        note = f"nothing was probed: the model refuses the call it was given before ({type(error).__name__}: {error})"
        return replace(regime, notes=(*regime.notes, note))
    search = _Search(bench, regime, base, pins)
    try:
        search.run()
    except SpentError:
        search.blind.append(search.untried())
    if not any(axis.dim == 0 for axis in search.settled):
        search.blind.append(search.no_batch)
    rows = (*regime.probes, *search.rows)
    notes, blind = (*regime.notes, *bench.notes, *search.notes), (*regime.blind, *filter(None, search.blind))
    lows, trace = {**regime.lows, **search.lows}, (*regime.trace, *bench.records)
    return replace(regime, probes=rows, notes=notes, blind=blind, lows=lows, trace=trace)


def pin_axes(regime: Regime, pins: Pins) -> Regime:
    """The regime with a row in which the axes change that are pinned as dynamic, and that no call and probe changed.

    Axes of the same dimension and size change together.
    """
    if not pins.dynamic:
        return regime
    table = regime.table
    most = max(table.rows, key=lambda row: len(row.sizes), default=None)
    if most is None:
        return regime
    still = [a for a in table.axes if pins.is_dynamic(a) and a in most.sizes and not varies(table.column(a))]
    rows = []
    for dim, size in dict.fromkeys((axis.dim, most.sizes[axis]) for axis in still):
        together = {axis: size + 1 for axis in still if (axis.dim, most.sizes[axis]) == (dim, size)}
        rows.append(Row(PINNED, {**most.sizes, **together}))
    return replace(regime, probes=(*regime.probes, *rows))


def _base_values(regime: Regime, samples: Sequence[Sample]) -> dict[Path, Any] | None:
    """The values that probes start from: the sizes of the last kept call that has the most leaves."""
    calls = {call.index for form in regime.union.forms for call in form.calls}
    own = [sample for sample in samples if sample.call.index in calls]
    if not own:
        return None
    richest = max(own, key=lambda sample: (len(sample.inputs.leaves), sample.call.index))
    plan = regime.plan()
    return materialise(plan, sizes_of(plan, leaf_values(richest)), [richest, *own])


class _Search:
    """Goes through the classes of axes; ``rows`` are the changes that the model accepts."""

    def __init__(self, bench: Bench, regime: Regime, base: Mapping[Path, Any], pins: Pins) -> None:
        self.bench, self.base, self.pins = bench, base, pins
        self.table = regime.table
        still = still_axes(self.table, base, pins)
        self.still = [axis for axis in still if axis.dim is not None or bench.reads_int(axis)]
        self.state = frozenset(axis for axis in self.still if is_settled_state(axis, self.table, base))
        self.settled: set[Axis] = set()
        self.rows: list[Row] = []
        self.notes: list[str] = []
        self.blind: list[str] = []
        self.no_batch = ""
        self.lows: dict[Axis, int] = {}

    def run(self) -> None:
        """Tries all classes.

        :raises SpentError: when the budget ends before
        """
        for axes in batches(self.still, self.base):
            if self._is_open(axes):
                self._try_batch(axes)
        self._tell_batch()
        n_batches = len(self.rows)
        classes = list(by_size([axis for axis in self.still if axis.dim != 0], self.base))
        for axes in classes:
            for part in parts(axes, self.state):
                if self._is_open(part) and not set(part) <= self.state and (step := self._try_sides(part)):
                    self._find_least(part, step)
        for axes in classes:
            left = tuple(axis for axis in axes if axis not in self.state)
            if self._is_open(left):
                self._try_likely_steps(left)
        alone = [axis for axis in self.still if self._is_left(axis)]
        self.rows[n_batches:], followers = with_followers(self.bench, self.rows[n_batches:], alone)
        self.settled |= followers
        self._try_pairs()
        self._try_across()

    def untried(self) -> str:
        """What is not known since the budget ended."""
        left = [axis for axis in self.still if axis not in self.settled and axis not in self.state]
        asked = {axis for record in self.bench.records for axis in record.axes}
        names = _shortened([axis for axis in left if axis not in asked])
        if not names:
            return "the budget of probes ended before every way was tried: raise budget="
        return f"the budget of probes ended before {names} could be asked about: raise budget=, or watch other sizes"

    def _is_open(self, axes: Collection[Axis]) -> bool:
        """True for a class that is not settled, and that the caller did not decide about."""
        counts_alone = all(axis.dim is None for axis in axes)
        return not counts_alone and not self.settled & set(axes) and not all(map(self.pins.is_dynamic, axes))

    def _is_left(self, axis: Axis) -> bool:
        return axis not in self.settled and axis not in self.state and axis.dim != 0

    def _settle(self, axes: Sequence[Axis], *rows: Row | None) -> None:
        self.settled |= set(axes)
        self.rows += [row for row in rows if row is not None]

    def _try_batch(self, axes: Sequence[Axis]) -> None:
        sizes = [self.bench.size(axis) for axis in axes]
        ways = ((1, 1), (2, 0)) if len(set(sizes)) == 1 else ((2, 0),)
        for factor, plus in ways:
            changed = [factor * size + plus for size in sizes]
            row = self.bench.probe(axes, changed, batch=True)
            if row is None:
                continue
            if self.bench.is_fake:
                if not self.bench.confirms(axes, changed):
                    self.notes.append(f"{_shortened(axes)}: a real run gave other rows than before")
                    return
                self.notes.append(f"{_shortened(axes)}: the rows of a real run are as before")
            self._settle(axes, row)
            return

    def _tell_batch(self) -> None:
        """Says that no batch was found, where every first dimension kept its size."""
        first = [axis for axis in self.table.axes if axis.dim == 0]
        if not first or self.settled or any(varies(self.table.column(axis)) for axis in first):
            return
        asked = [axis for axis in first if axis in self.still and not self.pins.is_dynamic(axis)]
        if asked:
            record = next(record for record in self.bench.records if record.axes[0] in asked)
            self.no_batch = (
                f"no batch: {record.axes[0]} was {self.bench.size(record.axes[0])} in every call, and with "
                f"{record.sizes[0]}, {record.outcome}; run the model with another number of rows"
            )

    def _try_sides(self, axes: Sequence[Axis]) -> int:
        """The least step by which the model lets the axes change: 0 where it does not."""
        sizes = [self.bench.size(axis) for axis in axes]
        row = self.bench.probe(axes, [size + 1 for size in sizes])
        if row is not None:
            self._settle(axes, row)
            return 1
        size = sizes[0]
        if len(set(sizes)) > 1 or size < 2:
            return 0
        twice = self._to(axes, 2 * size)
        if twice is None:
            return 0
        found = {size: twice}

        def takes(wanted: int) -> bool:
            taken = self._to(axes, wanted)
            found.update({} if taken is None else {wanted - size: taken})
            return taken is not None

        step = least_step(size, takes)
        further = self._to(axes, 3 * size) if step == size and size < 4 else None
        self._settle(axes, found[step], twice if step != size else further)
        self._note_step(axes, step)
        return step

    def _try_likely_steps(self, axes: Sequence[Axis]) -> None:
        """Tries the common steps, for a size whose double is too much for the model."""
        size = self.bench.size(axes[0])
        floats = self.base[axes[0].path].dtype.is_floating_point
        for step in likely_steps(size) if floats and self.base[axes[0].path].ndim > 2 else ():
            row = self._to(axes, size + step)
            if row is not None:
                self._settle(axes, row)
                self._note_step(axes, step)
                self._find_least(axes, step)
                return

    def _to(self, axes: Sequence[Axis], size: int) -> Row | None:
        return self.bench.probe(axes, [size] * len(axes))

    def _note_step(self, axes: Sequence[Axis], step: int) -> None:
        size = self.bench.size(axes[0])
        text = f"{_shortened(axes)}: {size + 1} is refused and {size + step} accepted, so it changes in steps of {step}"
        self.notes.append(text)

    def _find_least(self, axes: Sequence[Axis], step: int) -> None:
        """Finds the least size, of each side where the sides of a tensor may differ."""
        parts_of = self._split(axes, step) or [tuple(axes)]
        for part in parts_of:
            size = self.bench.size(part[0])
            if len({self.bench.size(axis) for axis in part}) == 1 and size > step:
                self._bisect(part, step, size)

    def _split(self, axes: Sequence[Axis], step: int) -> list[tuple[Axis, ...]]:
        """The sides of one tensor, where each changes without the others: they had the same size by chance."""
        found = sides(axes)
        rows = []
        for side in found:
            row = self.bench.probe(side, [self.bench.size(axis) + step for axis in side])
            if row is None:
                return []
            rows.append(row)
        self.rows += rows
        return found

    def _bisect(self, axes: Sequence[Axis], step: int, size: int) -> None:
        """Halves what is between a size that is too small and one that is taken."""
        if self._to(axes, step) is not None:
            self.lows.update(dict.fromkeys(axes, step))
            return
        refused, taken = 1, size // step
        while taken - refused > 1:
            middle = (taken + refused) // 2
            if self._to(axes, middle * step) is None:
                refused = middle
            else:
                taken = middle
        self.lows.update(dict.fromkeys(axes, taken * step))
        self.notes.append(f"{_shortened(axes)}: {refused * step} is refused and {taken * step} accepted as the least")

    def _try_pairs(self) -> None:
        """Tries two classes at once, then two axes: a mask and its tokens, of which neither goes alone."""
        left = [axis for axis in self.still if self._is_left(axis)]
        tensors = [axis for axis in left if axis.dim is not None]
        classes = [axes for axes in by_size(left, self.base) if axes[0].dim is not None]
        alone = [(axis,) for axis in tensors[:_MOST_PAIRED]]
        for one, two in dict.fromkeys([*combinations(classes[:_MOST_PAIRED], 2), *combinations(alone, 2)]):
            axes = (*one, *two)
            if {*axes} <= self.settled or len({axis.path.root for axis in axes}) == 1:
                continue
            row = self.bench.probe(axes, [self.bench.size(axis) + 1 for axis in axes])
            if row is not None:
                self._settle(axes, row)

    def _try_across(self) -> None:
        """Tries axes in different places, first dimensions that mix their rows, and sizes that are multiples."""
        left = [axis for axis in self.still if axis not in self.settled and axis not in self.state]
        for axes in mixed_classes(left, self.base, has_batch=any(axis.dim == 0 for axis in self.settled)):
            if self._is_open(axes):
                self._try_sides(axes)
        free = [axis for axis in self.still if axis not in self.state]
        for large, small, factor in multiples(free, [a for a in left if a not in self.settled], self.base):
            sizes = [self.bench.size(axis) for axis in (*large, *small)]
            more = [factor] * len(large) + [1] * len(small)
            row = self.bench.probe((*large, *small), [n + k for n, k in zip(sizes, more, strict=True)])
            if row is not None:
                self._settle((*large, *small), row)
                self.lows = {axis: low for axis, low in self.lows.items() if axis not in large}


def _shortened(axes: Sequence[Axis]) -> str:
    names = [str(axis) for axis in axes]
    return ", ".join(names if len(names) <= 4 else [*names[:3], f"{len(names) - 3} more"])
