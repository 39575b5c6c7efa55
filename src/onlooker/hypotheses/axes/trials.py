"""One call of the model, run again with some axes of another size, and judged."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

import torch

from ...core.call import Arguments, Values
from ...core.experiment import Experiment, Finding, FindingKind
from ...core.path import Path
from ...core.spec import Axis
from ...core.structure import Result
from ...infer.samples import Row, row_of_values
from ...lab.judge import have_same_ranks, perturbed
from ...lab.lab import Lab, SpentError
from ...materialise.arguments import Calls
from ...materialise.tensors import resized
from ...pytrees.numbers import altered, is_same
from ..reading import reads_difference
from .classes import size_of
from .result_before import ResultBefore

__all__ = ["AxisTrials"]

logger = logging.getLogger(__name__)

_ACCEPTED = Finding(FindingKind.ACCEPTED)
_UNREAD = Finding(FindingKind.UNREAD)
_ROWS_CHANGED = Finding(FindingKind.ROWS_CHANGED)
_OTHER_FORM = Finding(FindingKind.OTHER_FORM)
#: runs, under the default budget, of a large model that cannot be run with fake tensors
_MOST_LARGE = 12


class AxisTrials:
    """Changes the sizes of axes of one call, the ``base``, and judges what the model does.

    A model that takes a lot of work for one run is run with fake tensors: then shapes alone are
    judged, until a real run confirms a batch. One that cannot run on fake tensors, since its path
    depends on values, gets a few real runs. How much work it is follows from the model and the
    sizes, not from a clock. All values stay in the domains
    of the ``calls``.
    """

    def __init__(self, calls: Calls, base: Values, lab: Lab) -> None:
        self.calls, self.base, self.lab = calls, base, lab
        self.records: list[Experiment] = []
        self.notes: list[str] = []
        self._n_rows = 0
        self._most_large = lab.in_proportion(_MOST_LARGE)
        self._large_runs: int | None = None
        arguments = calls.arguments_of(base)
        result = lab.run(arguments, why="the call that axes are changed in", memo=True)
        self._before = ResultBefore(base, result)
        is_large = lab.work_of(base) > lab.most_work
        self.is_fake = is_large and self._takes_fake(arguments)

    def _takes_fake(self, arguments: Arguments) -> bool:
        try:
            self.lab.run_fake(arguments, why="the same call with fake tensors")
        except SpentError:
            raise
        except Exception as error:
            self._large_runs = self._most_large
            kind = type(error).__name__
            times = f"at most {self._most_large} times"
            self.notes.append(f"a large model that refuses fake tensors ({kind}) is probed {times}")
            logger.debug("fake tensors are refused: %s", error)
            return False
        self.notes.append("a large model is probed with fake tensors, which tell shapes only")
        return True

    # --------------------------------------------------------------------------------------- trials

    def size(self, axis: Axis) -> int:
        """The size of an axis before any change."""
        return size_of(axis, self.base)

    def grown(self, axes: Sequence[Axis], step: int) -> list[int]:
        """The sizes of the axes after they have grown by a step, which is less than 0 where they
        shrink.
        """
        return [self.size(axis) + step for axis in axes]

    def probe(
        self, axes: Sequence[Axis], sizes: Sequence[int], *, batch: bool = False
    ) -> Row | None:
        """The row of a change that the model accepts, or None.

        The other rows of a batch must come out as they did; any other axis must matter to the
        result.

        :raises SpentError: when the budget has ended
        """
        values = self._resized(axes, sizes)
        got, finding = self._run(values, _spelled(axes, sizes))
        if got is not None:
            finding = self._judged_batch(axes, got) if batch else self._judged_axes(axes, got)
        is_accepted = finding.kind is FindingKind.ACCEPTED
        label = f"probe {self._n_rows}" if is_accepted else ""
        self.records.append(self.lab.record(axes, sizes, finding=finding, label=label))
        if not is_accepted:
            return None
        self._n_rows += 1
        return row_of_values(label, values)

    def probe_unread(self, axis: Axis) -> Row | None:
        """The row of a larger size of an axis that nothing reads; None where the model refuses it, or
        gives another result.

        :raises SpentError: when the budget has ended
        """
        sizes = self.grown((axis,), 1)
        if not self.changes_nothing((axis,), sizes):
            return None
        values = self._resized((axis,), sizes)
        label = f"probe {self._n_rows}"
        self._n_rows += 1
        claim = f"{axis.path}, which nothing reads, may have any size"
        finding = Finding(FindingKind.CONFIRMED)
        self.records.append(
            self.lab.record((axis,), sizes, finding=finding, claim=claim, label=label)
        )
        return row_of_values(label, values)

    def changes_nothing(self, axes: Sequence[Axis], sizes: Sequence[int]) -> bool:
        """True when the model takes the change, and gives the same result.

        :raises SpentError: when the budget has ended
        """
        got, _ = self._run(self._resized(axes, sizes), _spelled(axes, sizes))
        if got is None:
            return False
        return not (
            self._before.has_other_shapes(got) if self.is_fake else self._before.differs(got)
        )

    def is_unread(self, axis: Axis) -> bool:
        """True for an axis of which every change that the model took was read by nothing."""
        found = {record.finding.kind for record in self.records if axis in record.axes}
        if FindingKind.UNREAD not in found or FindingKind.ACCEPTED in found:
            return False
        value = self.base[axis.path]
        return value.dtype.is_floating_point or self._is_unread_in_another_order(axis.path)

    def _is_unread_in_another_order(self, path: Path) -> bool:
        """True when the values of an input, put in another order, give the same result."""
        value = self.base[path]
        other = value.flatten().roll(1).reshape(value.shape)
        if torch.equal(value, other):  # nothing is told by values that are all the same
            return False
        got, _ = self._run({**self.base, path: other}, f"another order of {path}", real=True)
        return got is not None and not self._before.differs(got)

    def confirms(self, axes: Sequence[Axis], sizes: Sequence[int]) -> bool:
        """True when a real run keeps the rows of a batch that fake tensors accepted.

        :raises SpentError: when the budget has ended
        """
        got, _ = self._run(
            self._resized(axes, sizes), f"{_spelled(axes, sizes)}, really", real=True
        )
        return got is not None and self._before.has_rows_of(got, self.size(axes[0]))

    def reads(self, axes: Sequence[Axis], sizes: Sequence[int], longer: Sequence[Axis]) -> bool:
        """True when the model accepts the change, and its result depends on what the axes of
        ``longer`` have got more.

        :raises SpentError: when the budget has ended
        """
        values = self._resized(axes, sizes)
        why = _spelled(axes, sizes)
        got, _ = self._run(values, why, real=True)
        if got is None:
            return False
        changed = perturbed(values, self.base, longer, self.calls.domains)
        other, _ = self._run(changed, f"{why}, other values", real=True)
        if other is None:
            return False
        return reads_difference(self.calls.plan, self.lab, (values, got), (changed, other), why=why)

    def reads_int(self, axis: Axis) -> bool:
        """True when the model refuses another int, or gives another result for it.

        :raises SpentError: when the budget has ended
        """
        number = self.size(axis) + 1
        values = {**self.base, axis.path: number}
        got, _ = self._run(values, f"{axis} = {number}", real=True)
        return got is None or self._before.differs(got)

    def _resized(self, axes: Sequence[Axis], sizes: Sequence[int]) -> Values:
        values = dict(self.base)
        for axis, size in zip(axes, sizes, strict=True):
            if axis.dim is None:
                values[axis.path] = size
                continue
            shape = list(values[axis.path].shape)
            shape[axis.dim] = size
            values[axis.path] = resized(values[axis.path], shape)
        return self.calls.domains.clamped(values)

    def _run(
        self, values: Values, why: str, *, real: bool = False
    ) -> tuple[Result | None, Finding]:
        """The result of the model; None, and why, where it refuses or gives a result of another
        form.
        """
        if self._large_runs == 0:
            raise SpentError(f"{self._most_large} runs of a large model")
        if self._large_runs is not None:
            self._large_runs -= 1
        try:
            arguments = self.calls.arguments_of(values)
            if self.is_fake and not real:
                got = self.lab.run_fake(arguments, why=why)
            else:
                got = self.lab.run(arguments, why=why, memo=True)
        except SpentError:
            raise
        except Exception as error:
            logger.debug("%s is refused: %s: %s", why, type(error).__name__, error)
            return None, Finding(FindingKind.REFUSED, _first_line(error))
        if not have_same_ranks(self._before.result, got):
            return None, _OTHER_FORM
        return got, _ACCEPTED

    # ------------------------------------------------------------------------------------- verdicts

    def _judged_batch(self, axes: Sequence[Axis], got: Result) -> Finding:
        """Accepted when the rows that were there before come out as before."""
        size = self.size(axes[0])
        holds = (
            bool(self._before.grown(got, size))
            if self.is_fake
            else self._before.has_rows_of(got, size)
        )
        return _ACCEPTED if holds else _ROWS_CHANGED

    def _judged_axes(self, axes: Sequence[Axis], got: Result) -> Finding:
        """Accepted when the result is another one, or would be for other values of one of the
        arguments.
        """
        differs = self._before.has_other_shapes(got) if self.is_fake else self._before.differs(got)
        if differs:
            return _ACCEPTED
        for path in dict.fromkeys(axis.path for axis in axes):
            if self._is_read(path):
                return _ACCEPTED
        return _UNREAD

    def _is_read(self, path: Path) -> bool:
        """True when other values of a float input, or NaN, give another result.

        Many layers may round a small difference away, as those of untrained models do; NaN comes
        through.
        """
        value = self.base[path]
        if not isinstance(value, torch.Tensor) or not value.dtype.is_floating_point:
            return False
        changed = altered(value)
        others = self.calls.domains.clamped({**self.base, path: changed})
        tried = [(others, "other values")]
        if is_same(others[path], changed):  # any number is a valid one
            not_numbers = {**self.base, path: torch.full_like(value, torch.nan)}
            tried.append((not_numbers, "NaN as values"))
        for values, what in tried:
            got, _ = self._run(values, f"{what} of {path}", real=True)
            if got is not None and self._before.differs(got):
                return True
        return False


def _spelled(axes: Sequence[Axis], sizes: Sequence[int]) -> str:
    return f"{', '.join(map(str, axes))} = {sizes[0]}"


def _first_line(error: Exception) -> str:
    """The kind of an error and the beginning of its message, without addresses: a plan is the
    same every time.
    """
    lines = str(error).strip().splitlines() or [""]
    return re.sub(r"0x[0-9a-f]+", "0x", f"{type(error).__name__}: {lines[0]}")[:120]
