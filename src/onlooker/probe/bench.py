"""Where a model is asked: one call, run again with some axes of another size, and judged."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..core.path import Path
from ..core.plan import Plan, Probe
from ..core.spec import Axis
from ..core.structure import Tree
from ..infer.samples import Row, row_of_values
from ..materialise.arguments import close_arguments
from ..materialise.tensors import resized
from ..pytrees.agree import agreement
from ..pytrees.numbers import altered
from .broken import perturbed, same_results
from .classes import size_of
from .handed_back import computed
from .pins import Pins
from .subject import Subject

__all__ = ["ACCEPTED", "REFUSED", "UNREAD", "Bench", "SpentError"]

logger = logging.getLogger(__name__)
ACCEPTED = "accepted"
REFUSED = "refused"
UNREAD = "nothing reads it"
_FEW = 12


class SpentError(Exception):
    """The budget of probes ended; never seen by a user."""


class Bench:
    """Runs probes from one call of the model, counts them, and writes down what came of each.

    A model whose first run is slow is run with fake tensors: then shapes alone are judged, until a real run
    confirms them. One that cannot run on fake tensors, since its path depends on values, gets a few real runs.
    """

    def __init__(self, plan: Plan, base: Mapping[Path, Any], subject: Subject, pins: Pins) -> None:
        self.plan, self.base, self.subject = plan, base, subject
        self.records: list[Probe] = []
        self.notes: list[str] = []
        self.runs, self.most = 0, pins.probes
        start = time.monotonic()
        self.deadline = start + pins.seconds
        self.expected = subject.try_out(close_arguments(plan, base))
        self.judged = computed(base.values(), self.expected.leaves)
        self.is_fake = time.monotonic() - start > pins.slow and self._takes_fake()

    def _takes_fake(self) -> bool:
        try:
            self.subject.try_fake(close_arguments(self.plan, self.base))
        except Exception as error:
            self.most = min(self.most, _FEW)
            text = (
                f"a slow model that refuses fake tensors ({type(error).__name__}) is probed at most {self.most} times"
            )
            self.notes.append(text)
            logger.debug("fake tensors are refused: %s", error)
            return False
        self.notes.append("a slow model is probed with fake tensors, which tell shapes only")
        return True

    def size(self, axis: Axis) -> int:
        """The size of an axis before any change."""
        return size_of(axis, self.base)

    def probe(self, axes: Sequence[Axis], sizes: Sequence[int], *, batch: bool = False) -> Row | None:
        """The row of a change that the model accepts, or None.

        The other rows of a batch must come out as they did; any other axis must matter to the result.

        :raises SpentError: when the budget allows no further run
        """
        logger.info("probe %d of at most %d: %s = %d", self.runs + 1, self.most, ", ".join(map(str, axes)), sizes[0])
        values = self._resized(axes, sizes)
        got, outcome = self._run(values, real=False)
        if got is not None:
            holds = self._keeps_rows(got, self.size(axes[0])) if batch else self._matters(axes, got)
            outcome = ACCEPTED if holds else "the rows before come out otherwise" if batch else UNREAD
        number = sum(record.outcome == ACCEPTED for record in self.records)
        label = f"probe {number}" if outcome == ACCEPTED else ""
        self.records.append(Probe(tuple(axes), tuple(sizes), outcome, label))
        return row_of_values(label, values) if label else None

    def confirms(self, axes: Sequence[Axis], sizes: Sequence[int]) -> bool:
        """True when a real run keeps the rows of a batch that fake tensors accepted."""
        got, _ = self._run(self._resized(axes, sizes), real=True)
        return got is not None and self._rows_agree(got, self.size(axes[0]))

    def reads(self, axes: Sequence[Axis], sizes: Sequence[int], longer: Sequence[Axis]) -> bool:
        """True when the model accepts the change, and reads what ``longer``, which are among the axes, have got more.

        :raises SpentError: when the budget allows no further run
        """
        values = self._resized(axes, sizes)
        got, _ = self._run(values, real=True)
        other, _ = (None, "") if got is None else self._run(perturbed(values, self.base, longer), real=True)
        return got is not None and other is not None and not same_results(values, got, other)

    def reads_int(self, axis: Axis) -> bool:
        """True when the model refuses another int, or gives another result for it; never where the budget has ended."""
        try:
            got, _ = self._run({**self.base, axis.path: self.base[axis.path] + 1}, real=True)
        except SpentError:
            return False
        return got is None or self._differs(got, real=True)

    def _resized(self, axes: Sequence[Axis], sizes: Sequence[int]) -> dict[Path, Any]:
        values = dict(self.base)
        for axis, size in zip(axes, sizes, strict=True):
            if axis.dim is None:
                values[axis.path] = size
                continue
            shape = list(values[axis.path].shape)
            shape[axis.dim] = size
            values[axis.path] = resized(values[axis.path], shape)
        return values

    def _run(self, values: Mapping[Path, Any], *, real: bool) -> tuple[Tree[Any] | None, str]:
        """The result of the model, or None and why it does not count."""
        if self.runs >= self.most or time.monotonic() > self.deadline:
            raise SpentError
        self.runs += 1
        run: Callable[[dict[str, Any]], Tree[Any]] = self.subject.try_out
        if self.is_fake and not real:
            run = self.subject.try_fake
        try:
            got = run(close_arguments(self.plan, values))
        except Exception as error:
            logger.debug("a probe is refused: %s: %s", type(error).__name__, error)
            return None, f"{REFUSED}, {_first_line(error)}"
        ranks = [[getattr(leaf, "ndim", -1) for leaf in tree.leaves] for tree in (self.expected, got)]
        return (got, ACCEPTED) if ranks[0] == ranks[1] else (None, "the result has another form")

    def _keeps_rows(self, got: Tree[Any], size: int) -> bool:
        return bool(self._grown(got, size)) if self.is_fake else self._rows_agree(got, size)

    def _grown(self, got: Tree[Any], size: int) -> list[tuple[Path, torch.Tensor, torch.Tensor]]:
        """The outputs that got more rows, before and after; else those of which each row of the batch has several."""
        pairs = zip(self.expected.items(), got.leaves, strict=True)
        tensors = [(path, old, new) for (path, old), new in pairs if isinstance(old, torch.Tensor) and old.ndim]
        more = [(path, old, new) for path, old, new in tensors if new.shape[0] > old.shape[0]]
        same = [(path, old, new) for path, old, new in more if old.shape[0] == size]
        return same or [(path, old, new) for path, old, new in more if size and old.shape[0] % size == 0]

    def _rows_agree(self, got: Tree[Any], size: int) -> bool:
        """True when some output got more rows, and what was there before is as before.

        A table of all rows against all others grows along both.
        """
        grown = self._grown(got, size)
        left = [old for _, old, _ in grown]
        right = [new[tuple(slice(0, n) for n in old.shape)] for _, old, new in grown]
        return bool(grown) and agreement([path for path, _, _ in grown], left, right, atol=1e-4).holds

    def _matters(self, axes: Sequence[Axis], got: Tree[Any]) -> bool:
        """True when the result is another one, or would be for other values: what nothing reads stays as it was."""
        return self._differs(got) or any(self._is_read(path) for path in dict.fromkeys(axis.path for axis in axes))

    def _differs(self, got: Tree[Any], *, real: bool = False) -> bool:
        """True when an output is another one, and no input that is handed back."""
        before, after = ([tree.leaves[i] for i in self.judged] for tree in (self.expected, got))
        if self.is_fake and not real:
            shapes = [[getattr(leaf, "shape", leaf) for leaf in leaves] for leaves in (before, after)]
            return bool(shapes[0] != shapes[1])
        paths = [path for i, path in enumerate(self.expected.structure.paths()) if i in self.judged]
        return not agreement(paths, before, after, atol=0.0).holds

    def _is_read(self, path: Path) -> bool:
        """True when other values of a float input give another result."""
        value = self.base[path]
        if not isinstance(value, torch.Tensor) or not value.dtype.is_floating_point:
            return False
        got, _ = self._run({**self.base, path: altered(value)}, real=True)
        return got is not None and self._differs(got, real=True)


def _first_line(error: Exception) -> str:
    """The kind of an error and the beginning of its message, without addresses: a plan is the same every time."""
    lines = str(error).strip().splitlines() or [""]
    return re.sub(r"0x[0-9a-f]+", "0x", f"{type(error).__name__}: {lines[0]}")[:120]
