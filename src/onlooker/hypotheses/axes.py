"""May an axis that never changed change? The model is run with another size of it, everywhere at
once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any, ClassVar

from ..core.experiment import BlindKind, BlindSpot, Finding, FindingKind
from ..core.path import Path
from ..core.spec import Axis
from ..infer.relations import varies
from ..infer.samples import Row
from ..lab.lab import Lab, SpentError
from ..materialise.arguments import leaf_values, materialise
from ..materialise.counting import sizes_of
from ..materialise.domains import domains_of
from ..observing.store import Sample
from .axis_classes import batches, by_size, is_persistent_state, parts, sides, still_axes
from .axis_trials import AxisTrials
from .codependent_axes import with_codependent_axes
from .cross_argument_axes import cross_argument_classes, multiples
from .draft import Draft
from .overrides import PINNED
from .steps import least_step, likely_steps

__all__ = ["AxesThatMayChange", "PinnedAxes"]

_MOST_PAIRED = 8


class PinnedAxes:
    """Axes that the caller made dynamic, and that no call and no experiment changed, change:
    nothing is run.

    Axes of the same dimension and size change together.
    """

    question: ClassVar[str] = "what does the caller say of axes?"
    most_runs: ClassVar[int] = 0

    def __init__(self, draft: Draft, samples: Sequence[Sample], lab: Lab) -> None:
        self._draft = draft

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

    def untested(self, spent: SpentError) -> BlindSpot:
        """Nothing: no experiment is made."""
        return BlindSpot(BlindKind.BUDGET, limit=spent.limit)


class AxesThatMayChange:
    """Axes of one size that never changed may all have another size.

    The classes of axes are tried in this order: first dimensions of the same size; other axes of
    the same size, over all arguments, then without some, then argument by argument; then axes that
    are co-dependent with such a class; then pairs of classes, and axes that change together though
    they stand in other places. Axes that the caller made dynamic go with a class of the same size,
    and are no class alone.
    """

    question: ClassVar[str] = "which axes that never changed may change?"
    most_runs: ClassVar[int] = 65

    def __init__(self, draft: Draft, samples: Sequence[Sample], lab: Lab) -> None:
        self._draft, self._lab = draft, lab
        self._samples = draft.own(samples)
        self._search: _Search | None = None

    def drafts(self) -> Iterator[Draft]:
        """The draft with a row for every class of axes that the model lets change."""
        base = _base_values(self._draft, self._samples)
        if base is not None:
            yield from self._searched(base)

    def untested(self, spent: SpentError) -> BlindSpot:
        """The axes that were in no experiment, and did not change."""
        axes = self._search.untried() if self._search is not None else ()
        return BlindSpot(
            BlindKind.BUDGET, axes, detail="every axis could be probed", limit=spent.limit
        )

    def _searched(self, base: Mapping[Path, Any]) -> Iterator[Draft]:
        try:
            trials = AxisTrials(self._draft.plan(), base, self._lab, domains_of(self._samples))
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


def _base_values(draft: Draft, samples: Sequence[Sample]) -> dict[Path, Any] | None:
    """The values that are changed: those of the last kept call that has the most leaves."""
    if not samples:
        return None
    richest = max(samples, key=lambda sample: (len(sample.inputs.leaves), sample.call.index))
    plan = draft.plan()
    return materialise(plan, sizes_of(plan, leaf_values(richest)), [richest, *samples])


class _Search:
    """Goes through the classes of axes; ``rows`` are the changes that the model accepts."""

    def __init__(self, trials: AxisTrials, draft: Draft, base: Mapping[Path, Any]) -> None:
        self.trials, self.base = trials, base
        self._draft, self._overrides = draft, draft.overrides
        self._table = draft.table
        self.still = still_axes(self._table, base, self._overrides)
        self.state = frozenset(
            axis for axis in self.still if is_persistent_state(axis, self._table, base)
        )
        self.found: set[Axis] = set()
        self.rows: list[Row] = []
        self.lows: dict[Axis, int] = {}
        self._no_batch: BlindSpot | None = None

    def draft(self) -> Draft:
        """The draft with what was found so far."""
        draft = replace(
            self._draft,
            probes=(*self._draft.probes, *self.rows),
            notes=(*self._draft.notes, *self.trials.notes),
            lows={**self._draft.lows, **self.lows},
        )
        has_batch = any(axis.dim == 0 for axis in self.found)
        if self._no_batch is not None and not has_batch:
            draft = draft.with_blind(self._no_batch)
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
        self._try_batches()
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
        rows, codependent = with_codependent_axes(self.trials, self.rows[n_batch_rows:], unmatched)
        self.rows[n_batch_rows:] = rows
        self.found |= codependent
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

    # -------------------------------------------------------------------------------------- batches

    def _try_batches(self) -> None:
        unread = self._unread_rows()
        for axes in batches([axis for axis in self.still if axis not in unread], self.base):
            if self._is_open(axes):
                self._try_batch(axes)
        self._note_no_batch()

    def _unread_rows(self) -> set[Axis]:
        """First dimensions of 1 beside larger ones, in tensors that nothing reads: all else is a
        multiple of 1, and would seem to grow with them.
        """
        first = [axis for axis in self.still if axis.dim == 0]
        single = [axis for axis in first if self.trials.size(axis) == 1]
        if not single or len(single) == len(first):
            return set()
        return set(single) if self.trials.changes_nothing(single, [2] * len(single)) else set()

    def _try_batch(self, axes: Sequence[Axis]) -> None:
        sizes = [self.trials.size(axis) for axis in axes]
        twice = [2 * size for size in sizes]
        have_one_size = len(set(sizes)) == 1
        changes = (self.trials.grown(axes, 1), twice) if have_one_size else (twice,)
        for changed in changes:
            row = self.trials.probe(axes, changed, batch=True)
            if row is None:
                continue
            if self.trials.is_fake and not self._is_confirmed(axes, changed):
                return
            self._add(axes, row)
            return

    def _is_confirmed(self, axes: Sequence[Axis], changed: Sequence[int]) -> bool:
        """True when a real run agrees with what fake tensors showed about a batch."""
        is_confirmed = self.trials.confirms(axes, changed)
        kind = FindingKind.CONFIRMED if is_confirmed else FindingKind.REFUTED
        claim = "a real run keeps the rows that were there before"
        self.trials.lab.record(axes, changed, finding=Finding(kind), claim=claim)
        return is_confirmed

    def _note_no_batch(self) -> None:
        """Notes that no batch was found, where every first dimension kept its size."""
        first = [axis for axis in self._table.axes if axis.dim == 0]
        some_changed = any(varies(self._table.column(axis)) for axis in first)
        if self.found or some_changed:
            return
        tested = [
            axis for axis in first if axis in self.still and not self._overrides.is_dynamic(axis)
        ]
        for record in self.trials.records:
            axis = record.axes[0]
            if axis not in tested:
                continue
            before, after = self.trials.size(axis), record.sizes[0]
            detail = f"{axis} was {before} in every call, and with {after}, {record.finding}"
            self._no_batch = BlindSpot(BlindKind.NO_BATCH, (axis,), detail=detail)
            return

    # ------------------------------------------------------------------------------------ one class

    def _try_class(self, axes: Sequence[Axis]) -> None:
        if not self._is_open(axes) or set(axes) <= self.state:
            return
        step = self._try_sizes(axes)
        if step:
            self._find_least(axes, step)

    def _try_sizes(self, axes: Sequence[Axis]) -> int:
        """The least step by which the model lets the axes change: 0 where it does not."""
        sizes = [self.trials.size(axis) for axis in axes]
        row = self.trials.probe(axes, self.trials.grown(axes, 1))
        if row is not None:
            self._add(axes, row)
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
            row = self._to(axes, size + step)
            if row is not None:
                self._add(axes, row)
                self._record_step(axes, step)
                self._find_least(axes, step)
                return

    def _to(self, axes: Sequence[Axis], size: int) -> Row | None:
        return self.trials.probe(axes, [size] * len(axes))

    def _record_step(self, axes: Sequence[Axis], step: int) -> None:
        size = self.trials.size(axes[0])
        detail = f"{size + 1} is refused and {size + step} accepted"
        self._record(axes, size + step, f"it changes in steps of {step}", detail)

    def _record(self, axes: Sequence[Axis], size: int, claim: str, detail: str) -> None:
        """Writes down what several experiments say together."""
        finding = Finding(FindingKind.CONFIRMED, detail)
        self.trials.lab.record(axes, [size] * len(axes), finding=finding, claim=claim)

    # ---------------------------------------------------------------------------------- least sizes

    def _find_least(self, axes: Sequence[Axis], step: int) -> None:
        """Finds the least size, of each side where the sides of a tensor may differ."""
        for part in self._split(axes, step) or [tuple(axes)]:
            sizes = {self.trials.size(axis) for axis in part}
            size = self.trials.size(part[0])
            if len(sizes) == 1 and size > step:
                self._bisect(part, step, size)

    def _split(self, axes: Sequence[Axis], step: int) -> list[tuple[Axis, ...]]:
        """The sides of one tensor, where each changes without the others: they had the same size
        by chance.
        """
        found = sides(axes)
        rows = []
        for side in found:
            row = self.trials.probe(side, self.trials.grown(side, step))
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
        detail = f"{refused * step} is refused and {taken * step} accepted"
        self._record(axes, taken * step, "this is the least size", detail)

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
            row = self.trials.probe(axes, self.trials.grown(axes, 1))
            if row is not None:
                self._add(axes, row)

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
            row = self.trials.probe(axes, [*grown_large, *grown_small])
            if row is None:
                continue
            self._add(axes, row)
            for axis in large:
                self.lows.pop(axis, None)
