"""The batch of a call: first dimensions that change together, and rows that come out as before."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...core.call import Values
from ...core.experiment import BlindKind, BlindSpot
from ...core.spec import Axis
from ...infer.relations import varies
from ...infer.samples import Row, Table
from ..overrides import Overrides
from .classes import batches
from .trials import AxisTrials

__all__ = ["BatchSearch"]


class BatchSearch:
    """Looks for axes that are a batch, among those that were ``still`` in all calls.

    ``found`` are these axes, ``rows`` the changes that the model accepts. ``no_batch`` says, where there
    is none, which experiment would have shown one.
    """

    def __init__(
        self,
        trials: AxisTrials,
        still: Sequence[Axis],
        table: Table,
        base: Values,
        overrides: Overrides,
    ) -> None:
        self._trials, self._still, self._table, self._base = trials, still, table, base
        self._overrides = overrides
        self.found: set[Axis] = set()
        self.rows: list[Row] = []
        self.no_batch: BlindSpot | None = None

    def run(self) -> None:
        """Tries the classes of axes that may be a batch, the likeliest first.

        :raises SpentError: when the budget ends before
        """
        unread = self._unread_rows()
        for axes in batches([axis for axis in self._still if axis not in unread], self._base):
            is_pinned = all(self._overrides.is_dynamic(axis) for axis in axes)
            if not self.found & set(axes) and not is_pinned:
                self._try_batch(axes)
        self.no_batch = self._without_batch()

    def _unread_rows(self) -> set[Axis]:
        """First dimensions of 1 beside larger ones, in tensors that nothing reads: all else is a
        multiple of 1, and would seem to grow with them.
        """
        first = [axis for axis in self._still if axis.dim == 0]
        single = [axis for axis in first if self._trials.size(axis) == 1]
        if not single or len(single) == len(first):
            return set()
        return set(single) if self._trials.changes_nothing(single, [2] * len(single)) else set()

    def _try_batch(self, axes: Sequence[Axis]) -> None:
        sizes = [self._trials.size(axis) for axis in axes]
        twice = [2 * size for size in sizes]
        if len(set(sizes)) > 1:
            changes = [twice]
        elif sizes[0] == 1 and self._has_rows_of_two():  # 2 of these fit as well
            changes = [self._trials.grown(axes, 2)]
        else:
            changes = [self._trials.grown(axes, 1), twice]
        for changed in changes:
            row = self._trials.probe(axes, changed, batch=True)
            if row is None:
                continue
            if self._trials.is_fake and not self._is_confirmed(axes, changed):
                return
            self.found |= set(axes)
            self.rows.append(row)
            return

    def _has_rows_of_two(self) -> bool:
        """True where the first dimension of a tensor is 2."""
        values = self._base.values()
        return any(isinstance(one, torch.Tensor) and one.shape[:1] == (2,) for one in values)

    def _is_confirmed(self, axes: Sequence[Axis], changed: Sequence[int]) -> bool:
        """True when a real run agrees with what fake tensors showed about a batch."""
        is_confirmed = self._trials.confirms(axes, changed)
        claim = "a real run keeps the rows that were there before"
        return self._trials.lab.record_claim(claim, is_confirmed, axes=axes, sizes=changed)

    def _without_batch(self) -> BlindSpot | None:
        """Returns what is to be said of a batch, where every first dimension kept its size."""
        first = [axis for axis in self._table.axes if axis.dim == 0]
        some_changed = any(varies(self._table.column(axis)) for axis in first)
        if self.found or some_changed:
            return None
        tested = [
            axis for axis in first if axis in self._still and not self._overrides.is_dynamic(axis)
        ]
        for record in self._trials.records:
            axis = record.axes[0]
            if axis not in tested:
                continue
            before, after = self._trials.size(axis), record.sizes[0]
            detail = f"{axis} was {before} in every call, and with {after}, {record.finding}"
            return BlindSpot(BlindKind.NO_BATCH, (axis,), detail=detail)
        return None
