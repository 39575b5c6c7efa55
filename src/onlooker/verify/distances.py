"""Measures how far a program of another precision is from its model, and judges it.

Shapes, dtypes, ints, refusals and sizes of such a program have to be those of the model, as of any program.
Its floats are measured: output by output, over all watched calls that nothing was calibrated on, and over
all unseen ones. Beside them stands the distance of the model itself with rounded products
(:mod:`onlooker.verify.rounding`). A program that is several times as far as rounding explains was not
converted right.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..core.call import Arguments
from ..core.distance import Distance, OutputDistance
from ..core.precision import is_calibrated
from ..core.structure import Result
from ..core.verdict import Check, Focus, Outcome
from ..lab.runner import ModelRunner
from ..pytrees.comparisons.agree import leaves_like
from ..pytrees.numbers import as_numbers
from ..targets.integers.layers import is_in, layer_of
from .rounding import Bounds, rounded_products
from .trials import Trial

__all__ = [
    "CALIBRATED",
    "HELD_OUT",
    "UNSEEN",
    "Ruler",
    "added_up",
    "beside_known",
    "distance_checks",
]

logger = logging.getLogger(__name__)

#: the kinds of trials whose distances are told apart
HELD_OUT, UNSEEN, CALIBRATED = "held-out", "unseen", "calibration"


@dataclass(frozen=True, slots=True)
class _Bound:
    """How far a right conversion may be: so many times the mean and the largest error of rounding alone,
    and a mean error relative to the spread that is never too far. ``without`` is the mean error that
    is allowed where rounding could not be tried.
    """

    times: float
    times_largest: float
    least: float
    without: float


#: what right conversions of all targets meet and broken ones do not (docs/precision.md). Weights are
#: rounded alike everywhere; of activations the bounds are found in other ways
_BOUNDS = {
    "fp16": _Bound(4, 6, 1e-3, 0.01),
    "bf16": _Bound(3, 4, 1e-3, 0.03),
    "int8": _Bound(2, 2.5, 1e-3, 0.05),
    "int4": _Bound(1.4, 2.5, 2e-3, 0.4),
    "int8-static": _Bound(4, 15, 5e-3, 0.3),
}


@dataclass(slots=True)
class Ruler:
    """Measures the distances of a program of a precision, output by output.

    ``calibrated`` are the labels of the watched calls that bounds were measured on, ``calls`` the
    arguments of these, or of all where others were given. The weights of ``float_layers`` are not rounded.
    """

    precision: str
    calibrated: frozenset[str] = frozenset()
    calls: Sequence[Arguments] = ()
    float_layers: tuple[str, ...] = ()
    bounds: Bounds | None = None

    def measured(
        self, trial: Trial, subject: ModelRunner | None, expected: Result, got: Result
    ) -> tuple[OutputDistance, ...]:
        """The distances in one trial, whose result has the form of the model's; without a model what
        rounding does is not known.
        """
        kind = HELD_OUT if trial.kind == "observed" else UNSEEN
        if trial.kind == "observed" and trial.label in self.calibrated:
            kind = CALIBRATED
        leaves = leaves_like(expected, got)
        if leaves is None:
            return ()
        found = []
        rounded = None if subject is None else self._rounded(trial, subject, expected)
        for at, path in enumerate(expected.structure.paths()):
            wanted = expected.leaves[at]
            if not _is_measured(wanted):
                continue
            near = None if rounded is None else _distance(wanted, rounded[at])
            name = path.code() or "output"
            found.append(OutputDistance(name, kind, _distance(wanted, leaves[at]), near))
        return tuple(found)

    def _rounded(
        self, trial: Trial, subject: ModelRunner, expected: Result
    ) -> Sequence[Any] | None:
        """The leaves of the model with rounded products; None where it could not be run so."""
        try:
            if self.bounds is None:
                self._measure(subject)
            result = self._run(trial.arguments, subject)
        except Exception as error:
            logger.debug("%s: not run with rounded products: %s", trial.label, error)
            return None
        return leaves_like(expected, result)

    def _measure(self, subject: ModelRunner) -> None:
        """Notes the bounds of activations in the calls that were calibrated on."""
        self.bounds = {}
        if is_calibrated(self.precision):
            for arguments in self.calls:
                self._run(arguments, subject, measures=True)

    def _run(self, arguments: Arguments, subject: ModelRunner, *, measures: bool = False) -> Result:
        model = subject.watched
        is_module = isinstance(model, torch.nn.Module)
        named = [*model.named_parameters(), *model.named_buffers()] if is_module else []
        weights = [one for name, one in named if not is_in(layer_of(name), self.float_layers)]
        mode = rounded_products(self.precision, weights, self.bounds, measures=measures)
        with _plain_attention(), mode:
            return subject.try_out(arguments)


@contextlib.contextmanager
def _plain_attention() -> Iterator[None]:
    """Inside the block ``nn.TransformerEncoderLayer`` runs its products one by one."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _is_measured(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel() > 0


def _distance(wanted: torch.Tensor, got: Any) -> Distance:
    """The distance of two tensors of one shape; what is not finite in both counts for nothing."""
    if not isinstance(got, torch.Tensor) or got.shape != wanted.shape:
        return Distance(wanted.numel(), math.inf, math.inf)
    left = as_numbers(wanted.detach()).cpu().double()
    right = as_numbers(got.detach()).cpu().double()
    agreeing = rows = 0
    if left.ndim > 1 and left.shape[-1] > 1:
        agreeing = int((left.argmax(-1) == right.argmax(-1)).sum())
        rows = left.numel() // left.shape[-1]
    both = left.isfinite() & right.isfinite()
    left, right = left[both], right[both]
    errors = (left - right).abs()
    return Distance(
        left.numel(),
        float(errors.max()) if left.numel() else 0.0,
        float(errors.sum()),
        float(left.sum()),
        float(left.square().sum()),
        float((left * right).sum()),
        float(right.square().sum()),
        agreeing,
        rows,
    )


def added_up(distances: Iterable[OutputDistance]) -> tuple[OutputDistance, ...]:
    """One distance for each output and kind of call."""
    found: dict[tuple[str, str], OutputDistance] = {}
    for one in distances:
        key = (one.output, one.kind)
        found[key] = found[key] + one if key in found else one
    return tuple(found.values())


def beside_known(
    found: Iterable[OutputDistance], known: Iterable[OutputDistance]
) -> tuple[OutputDistance, ...]:
    """Distances that were found without a model, each with that of rounding alone that is known of
    the same output in calls of the same kind.
    """
    roundings = {(one.output, one.kind): one.rounding for one in known}
    return tuple(
        replace(one, rounding=one.rounding or roundings.get((one.output, one.kind)))
        for one in found
    )


def distance_checks(found: Iterable[OutputDistance], precision: str) -> Iterator[Check]:
    """A failed check for each output of the held-out and of the unseen calls that is farther from the
    model than a right conversion is.
    """
    bound = _BOUNDS[precision]
    for one in found:
        if one.kind == CALIBRATED:
            continue
        problem = _problem(one, bound, precision)
        if problem:
            kind = "observed" if one.kind == HELD_OUT else "unseen"
            label = f"{one.output} of the {one.kind} calls"
            yield Check(
                kind,
                label,
                Outcome.DIFFERENT,
                (),
                one.program.largest,
                problem,
                Focus.DISTANCE,
            )


def _problem(one: OutputDistance, bound: _Bound, precision: str) -> str:
    """Why an output is too far, in words; empty for nothing."""
    program, rounding = one.program, one.rounding
    if rounding is None or not rounding.errors:
        if program.mean_error <= bound.without:
            return ""
        return (
            f"its mean error is {program.mean_error:.2g} of the spread, and {bound.without:g} is"
            f" allowed for {precision}"
        )
    measures = (
        ("mean", program.mean_error, rounding.mean_error, bound.times, 1),
        ("largest", program.largest_error, rounding.largest_error, bound.times_largest, 10),
    )
    for words, error, usual, times, more in measures:
        if error > max(times * usual, more * bound.least):
            return (
                f"its {words} error is {error:.2g} of the spread, and rounding to {precision} alone"
                f" gives {usual:.2g}, which does not explain it"
            )
    return ""
