"""May an axis that never changed change? The model is run with another size of it, everywhere at
once.

An example: all calls had ``ids`` and ``mask`` of shape (2, 6) and ``image`` of shape (2, 3, 64, 64)::

    axes of one size             new size    the model                     what follows
    ids 0, mask 0, image 0       3           keeps the first two rows      they are the batch
    ids 1, mask 1                7           gives another result          they may change
    image 1                      4, 6        refuses both                  it stays 3
    image 2, image 3             65          refuses
                                 128         gives another result          they may change, in some steps
                                 96, 80, 72  takes the first two           in steps of 16
                                 16          gives another result          from 16 on
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import combinations

from ...core.call import Values
from ...core.experiment import BlindSpot
from ...core.spec import Axis
from ...infer.relations import varies
from ...infer.samples import Row
from ...lab.lab import SpentError
from ...materialise.arguments import Calls
from ...observing.store import Sample
from ..draft import Draft
from ..family import Family
from ..overrides import PINNED
from .across_arguments import cross_argument_classes, multiples
from .batch import BatchSearch
from .classes import by_size, parts, persistent_state, still_axes
from .codependent import with_codependent_axes
from .least_sizes import LeastSizes, record_size
from .steps import least_step, likely_steps
from .trials import AxisTrials

__all__ = ["AxesThatMayChange", "PinnedAxes"]

_MOST_PAIRED = 8


class PinnedAxes(Family):
    """Axes that the caller made dynamic, and that no call and no experiment changed, change:
    nothing is run.

    Axes of the same dimension and size change together.
    """

    question = "what does the caller say of axes?"
    most_runs = 0

    def drafts(self) -> Iterator[Draft]:
        """The draft with a row in which the axes have another size."""
        overrides, table = self._draft.overrides, self._draft.table
        richest = max(table.rows, key=lambda row: len(row.sizes), default=None)
        if richest is None or not overrides.dynamic:
            return
        classes: dict[tuple[int | None, int], list[Axis]] = {}
        for axis, size in richest.sizes.items():
            if overrides.is_dynamic(axis) and not varies(table.column(axis)):
                classes.setdefault((axis.dim, size), []).append(axis)
        rows = []
        for (_, size), together in classes.items():
            changed = dict.fromkeys(together, size + 1)
            rows.append(Row(PINNED, {**richest.sizes, **changed}))
        yield self._draft.with_probes(*rows)


class AxesThatMayChange(Family):
    """Axes of one size that never changed may all have another size.

    The classes of axes are tried in this order: first dimensions of the same size; other axes of
    the same size, over all arguments, then without some, then argument by argument; then axes that
    are co-dependent with such a class; then pairs of classes, and axes that change together though
    they stand in other places. Axes that the caller made dynamic go with a class of the same size,
    and are no class alone.
    """

    question = "which axes that never changed may change?"
    all_tested = "every axis could be probed"
    most_runs = 65
    _search: _Search | None = None

    def drafts(self) -> Iterator[Draft]:
        """The draft with a row for every class of axes that the model lets change."""
        base = _base_values(self._draft, self._samples)
        if base is not None:
            yield from self._searched(base)

    def untested(self, spent: SpentError) -> BlindSpot:
        """The axes that were in no experiment, and did not change."""
        axes = self._search.untried() if self._search is not None else ()
        return replace(super().untested(spent), axes=axes)

    def _searched(self, base: Values) -> Iterator[Draft]:
        try:
            trials = AxisTrials(Calls(self._draft.plan(), self._samples), base, self._lab)
        except SpentError:
            raise
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            note = f"nothing was probed: the model refuses the call it was given before ({why})"
            yield replace(self._draft, notes=(*self._draft.notes, note))
            return
        search = self._search = _Search(trials, self._draft, base)
        try:
            search.run()
        except SpentError:
            yield search.draft()
            raise
        yield search.draft()


def _base_values(draft: Draft, samples: Sequence[Sample]) -> Values | None:
    """The values that are changed: those of the last kept call that has the most leaves."""
    if not samples:
        return None
    richest = max(samples, key=lambda sample: (len(sample.inputs.leaves), sample.call.index))
    calls = Calls(draft.plan(), [richest, *samples])
    return calls.values(calls.sizes_of(richest))


class _Search:
    """Goes through the classes of axes; ``rows`` are the changes that the model accepts."""

    def __init__(self, trials: AxisTrials, draft: Draft, base: Values) -> None:
        self.trials, self.base = trials, base
        self._draft, self._overrides = draft, draft.overrides
        self._table = draft.table
        self.still = still_axes(self._table, base, self._overrides)
        self.state = persistent_state(self.still, self._table, base)
        self.found: set[Axis] = set()
        self.rows: list[Row] = []
        self._batch: BatchSearch | None = None
        self._least = LeastSizes(trials)

    def draft(self) -> Draft:
        """The draft with what was found so far."""
        draft = replace(
            self._draft,
            probes=(*self._draft.probes, *self.rows),
            notes=(*self._draft.notes, *self.trials.notes),
            lows={**self._draft.lows, **self._least.lows},
        )
        has_batch = any(axis.dim == 0 for axis in self.found)
        no_batch = self._batch.no_batch if self._batch is not None else None
        if no_batch is not None and not has_batch:
            draft = draft.with_blind(no_batch)
        return draft

    def untried(self) -> tuple[Axis, ...]:
        """The axes that were in no experiment."""
        known = self.found | self.state
        for record in self.trials.records:
            known |= set(record.axes)
        return tuple(axis for axis in self.still if axis not in known)

    def run(self) -> None:
        """Tries all classes, in the order that :class:`AxesThatMayChange` says.

        :raises SpentError: when the budget ends before
        """
        self.still = [
            axis for axis in self.still if axis.dim is not None or self.trials.reads_int(axis)
        ]
        batch = self._batch = BatchSearch(
            self.trials, self.still, self._table, self.base, self._overrides
        )
        try:
            batch.run()
        finally:  # what was found before the budget ended is kept
            self._add((*batch.found,), *batch.rows)
        self._least.batch = tuple(
            axis for axis in self.still if axis in batch.found and self.trials.size(axis) > 1
        )
        n_batch_rows = len(self.rows)
        classes = list(by_size([axis for axis in self.still if axis.dim != 0], self.base))
        for axes in classes:
            for part in parts(axes, self.state):
                self._try_class(part)
        for axes in classes:
            left = tuple(axis for axis in axes if axis not in self.state)
            if self._is_open(left):
                self._try_likely_steps(left)
        unmatched = [axis for axis in self.still if self._is_left(axis)]
        rows, codependent = with_codependent_axes(
            self.trials, self.rows[n_batch_rows:], unmatched, self._table
        )
        self.rows[n_batch_rows:] = rows
        self.found |= codependent
        for axis in codependent:  # the least size of one alone says nothing of them together
            self._least.lows.pop(axis, None)
        self._try_pairs()
        self._try_cross_argument_classes()
        self._try_multiples()
        self._free_unread_tensors()

    def _is_open(self, axes: Collection[Axis]) -> bool:
        """True for a class that was not found to change, and that the caller did not decide
        about.
        """
        are_all_ints = all(axis.dim is None for axis in axes)
        are_all_pinned = all(self._overrides.is_dynamic(axis) for axis in axes)
        return not are_all_ints and not self.found & set(axes) and not are_all_pinned

    def _is_left(self, axis: Axis) -> bool:
        return axis not in self.found and axis not in self.state and axis.dim != 0

    def _add(self, axes: Sequence[Axis], *rows: Row | None) -> None:
        """Notes that the axes may change, as these rows do."""
        self.found |= set(axes)
        self.rows += [row for row in rows if row is not None]

    def _takes(self, axes: Sequence[Axis], sizes: Sequence[int]) -> bool:
        """True when the model lets the axes change to these sizes, which is noted."""
        row = self.trials.probe(axes, sizes)
        if row is not None:
            self._add(axes, row)
        return row is not None

    # ------------------------------------------------------------------------------------ one class

    def _try_class(self, axes: Sequence[Axis]) -> None:
        if not self._is_open(axes) or set(axes) <= self.state:
            return
        step = self._try_sizes(axes)
        if step:
            self._least.find(axes, step, self.rows)

    def _try_sizes(self, axes: Sequence[Axis]) -> int:
        """The least step by which the model lets the axes change: 0 where it does not."""
        sizes = [self.trials.size(axis) for axis in axes]
        if self._takes(axes, self.trials.grown(axes, 1)):
            return 1
        size = sizes[0]
        if len(set(sizes)) > 1 or size < 2:
            return 0
        twice = self._to(axes, 2 * size)
        if twice is None:
            return 0
        found = {size: twice}

        def takes(wanted: int) -> bool:
            row = self._to(axes, wanted)
            if row is not None:
                found[wanted - size] = row
            return row is not None

        step = least_step(size, takes)
        self._add(axes, found[step])
        if step != size:
            self._add(axes, twice)
        elif size < 4:
            self._add(axes, self._to(axes, 3 * size))
        self._record_step(axes, step)
        return step

    def _try_likely_steps(self, axes: Sequence[Axis]) -> None:
        """Tries the common steps, for a size whose double is too much for the model."""
        value = self.base[axes[0].path]
        if not value.dtype.is_floating_point or value.ndim <= 2:
            return
        size = self.trials.size(axes[0])
        for step in likely_steps(size):
            if self._takes(axes, [size + step] * len(axes)):
                self._record_step(axes, step)
                self._least.find(axes, step, self.rows)
                return

    def _to(self, axes: Sequence[Axis], size: int) -> Row | None:
        return self.trials.probe(axes, [size] * len(axes))

    def _record_step(self, axes: Sequence[Axis], step: int) -> None:
        size = self.trials.size(axes[0])
        detail = f"{size + 1} is refused and {size + step} accepted"
        record_size(self.trials, axes, size + step, f"it changes in steps of {step}", detail)

    # ------------------------------------------------------------------------------ several classes

    def _try_pairs(self) -> None:
        """Tries two classes at once, then two axes: a mask and its tokens, of which neither
        changes alone.
        """
        left = [axis for axis in self.still if self._is_left(axis)]
        classes = [axes for axes in by_size(left, self.base) if axes[0].dim is not None]
        single = [(axis,) for axis in left if axis.dim is not None]
        pairs = [*combinations(classes[:_MOST_PAIRED], 2), *combinations(single[:_MOST_PAIRED], 2)]
        for one, two in dict.fromkeys(pairs):
            axes = (*one, *two)
            roots = {axis.path.root for axis in axes}
            if {*axes} <= self.found or len(roots) == 1:
                continue
            self._takes(axes, self.trials.grown(axes, 1))

    def _try_cross_argument_classes(self) -> None:
        """Tries axes in different places, and first dimensions that mix their rows."""
        left = [axis for axis in self.still if axis not in self.found and axis not in self.state]
        has_batch = any(axis.dim == 0 for axis in self.found)
        for axes in cross_argument_classes(left, self.base, has_batch=has_batch):
            if self._is_open(axes):
                self._try_sizes(axes)

    def _free_unread_tensors(self) -> None:
        """Lets the sizes of a tensor change that nothing reads: what a model hands on for others, or
        takes beside what it uses. A trace decides for which sizes the graph is right.
        """
        left = [axis for axis in self.still if axis.dim is not None and self._is_left(axis)]
        for path in dict.fromkeys(axis.path for axis in left):
            own = [axis for axis in left if axis.path == path]
            inner = [axis for axis in self._table.axes if axis.path == path and axis.dim]
            if set(own) == set(inner) and all(map(self.trials.is_unread, own)):
                rows = [axis for axis in self.still if axis.path == path and axis.dim == 0]
                for axis in (*rows, *own):
                    row = self.trials.probe_unread(axis)
                    if row is not None:
                        self._add((axis,), row)

    def _try_multiples(self) -> None:
        """Tries pairs of classes of which one has a multiple of the size of the other."""
        free = [axis for axis in self.still if axis not in self.state]
        left = [axis for axis in free if axis not in self.found]
        for large, small, factor in multiples(free, left, self.base):
            axes = (*large, *small)
            grown_large = self.trials.grown(large, factor)
            grown_small = self.trials.grown(small, 1)
            if self._takes(axes, [*grown_large, *grown_small]):
                for axis in large:
                    self._least.lows.pop(axis, None)
