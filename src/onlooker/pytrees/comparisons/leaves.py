"""The difference of two leaves: tensors of torch, arrays of numpy, numbers, or anything else."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...core.errors import UnsupportedError
from ...core.support.kinds import check_kind
from ...torch_internals.fake_tensors import FakeTensor
from ..descriptions.tensors import is_array
from ..numbers import as_numbers

__all__ = [
    "INFINITE",
    "Difference",
    "is_tensor_like",
    "leaf_difference",
    "subtracted",
    "thresholds_of",
]

_THRESHOLDS = (0.0, 0.0001, 0.001, 0.01, 0.1, 1.0, 10.0, 100.0)
_SMALL = 1e-3  # added to the expected value that a difference is divided by
_INT64 = 2**63


@dataclass(frozen=True, slots=True)
class Difference:
    """The distance of one value from another; ``+`` adds up the differences of many leaves."""

    abs: float = 0.0
    rel: float = 0.0
    sum: float = 0.0
    n: float = 0.0
    dnan: float = 0.0
    argm: tuple[int, ...] | None = None
    dev: int | None = None
    rep: tuple[tuple[str, int], ...] = ()

    def __add__(self, other: Difference) -> Difference:
        counts = dict(self.rep)
        for name, count in other.rep:
            counts[name] = counts.get(name, 0) + count
        devices = [dev for dev in (self.dev, other.dev) if dev is not None]
        return Difference(
            abs=max(self.abs, other.abs),
            rel=max(self.rel, other.rel),
            sum=self.sum + other.sum,
            n=self.n + other.n,
            dnan=self.dnan + other.dnan,
            dev=sum(devices) if devices else None,
            rep=tuple(counts.items()),
        )


INFINITE = Difference(math.inf, math.inf, math.inf, math.inf, math.inf)


def thresholds_of(hist: bool | Iterable[float] | None) -> tuple[float, ...]:
    """The bounds to count differences above: none, the usual ones, or those given.

    :raises ArgumentKindError: ``wrong-kind``
    """
    if hist is None or isinstance(hist, bool):
        return _THRESHOLDS if hist else ()
    wanted = "True, or the bounds to count differences above, as a list of numbers"
    check_kind(hist, Iterable, "hist", wanted)
    bounds = tuple(hist)
    for bound in bounds:
        check_kind(bound, (int, float), "A bound in hist", wanted)
    return bounds


def is_tensor_like(value: Any) -> bool:
    """True for a tensor or an array."""
    return isinstance(value, torch.Tensor) or is_array(value)


def leaf_difference(expected: Any, got: Any, thresholds: Sequence[float] = ()) -> Difference:
    """The difference of two leaves; infinite when their shapes differ, or when they cannot be
    subtracted.

    Numbers are subtracted in float64, integers exactly. NaN at the same place is no difference, NaN
    against a number an infinite one, counted by ``dnan``; the same infinity at the same place is no
    difference.

    :raises UnsupportedError: ``tensor-without-values`` for a fake tensor or one of the device meta

    >>> leaf_difference(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.5])).abs
    0.5
    """
    left, right = _as_tensor(expected), _as_tensor(got)
    if left is None or right is None:
        same = _same(expected, got)
        return Difference(n=1.0) if same else INFINITE
    device = _devices(expected, got)
    if left.shape != right.shape:
        return INFINITE
    if left.device != right.device:
        left, right = left.cpu(), right.cpu()
    if left.numel() == 0:
        return Difference(dev=device, rep=tuple((f">{bound}", 0) for bound in thresholds))
    return _measured(left.detach(), right.detach(), device, thresholds)


def _measured(
    left: torch.Tensor, right: torch.Tensor, device: int | None, thresholds: Sequence[float]
) -> Difference:
    delta, size, missing = subtracted(left, right)
    return Difference(
        abs=float(delta.max()),
        rel=float((delta / (size + _SMALL)).max()),
        sum=float(delta.sum()),
        n=float(delta.numel()),
        dnan=float(missing.sum()),
        argm=tuple(int(i) for i in torch.unravel_index(delta.argmax(), delta.shape)),
        dev=device,
        rep=tuple((f">{bound}", int((delta > bound).sum())) for bound in thresholds),
    )


def subtracted(
    left: torch.Tensor, right: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``|left - right|``, ``|left|`` where it is a number, and where NaN stands against a number.

    In float64, for dense tensors of the same shape on the same device; what is no number differs by
    infinity.
    """
    wide_left, wide_right = _wide(left), _wide(right)
    if wide_left.is_complex() != wide_right.is_complex():
        wide_left, wide_right = wide_left.to(torch.complex128), wide_right.to(torch.complex128)
    nan_left, nan_right = wide_left.isnan(), wide_right.isnan()
    missing = nan_left ^ nan_right
    delta = (wide_left - wide_right).abs()
    delta = delta.masked_fill((wide_left == wide_right) | (nan_left & nan_right), 0.0)
    delta = delta.masked_fill(missing | delta.isnan(), math.inf)
    exact = _exact(left), _exact(right)
    if exact[0] is not None and exact[1] is not None and exact[0].dtype == exact[1].dtype:
        # float64 cannot tell all integers apart
        unequal = exact[0] != exact[1]
        delta = torch.where(unequal, delta.clamp(min=1.0), 0.0)
    size = wide_left.abs()
    return delta, size.masked_fill(~size.isfinite(), 0.0), missing


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """The values in float64 or complex128, which hold those of every shorter type."""
    # of the largest integers torch has no other numbers than those of their bits, and yet it
    # converts them
    numbers = tensor if tensor.dtype == torch.uint64 else as_numbers(tensor)
    return numbers.to(torch.complex128 if numbers.is_complex() else torch.float64)


def _exact(tensor: torch.Tensor) -> torch.Tensor | None:
    """Integers and bools in int64, and in a dtype of their own those that it does not hold; None
    for all others.
    """
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex or tensor.is_quantized:
        return None
    return tensor if tensor.dtype == torch.uint64 else as_numbers(tensor).to(torch.int64)


def _as_tensor(value: Any) -> torch.Tensor | None:
    """A number, an array or a tensor as a tensor; None for anything else."""
    if isinstance(value, torch.Tensor):
        _check_values(value)
        # a distributed tensor cannot be computed with together with other tensors
        whole: torch.Tensor = value.full_tensor() if hasattr(value, "full_tensor") else value
        return whole.to_dense() if whole.layout != torch.strided else whole
    if isinstance(value, bool) or (isinstance(value, int) and -_INT64 <= value < _INT64):
        return torch.tensor(value)
    if isinstance(value, (int, float, complex)):
        wide = torch.complex128 if isinstance(value, complex) else torch.float64
        return torch.tensor(value if isinstance(value, complex) else float(value), dtype=wide)
    return _array_as_tensor(value) if is_array(value) else None


def _array_as_tensor(value: Any) -> torch.Tensor | None:
    import numpy

    array = numpy.array(value)
    try:
        return torch.from_numpy(array)
    except TypeError:  # types of other packages, bfloat16 for instance, and texts
        pass
    try:
        return torch.from_numpy(array.astype(numpy.float64))
    except (TypeError, ValueError):
        return None


def _check_values(tensor: torch.Tensor) -> None:
    fake = isinstance(tensor, FakeTensor)
    if fake or tensor.device.type == "meta" or torch.nn.parameter.is_lazy(tensor):
        raise UnsupportedError(
            "A fake tensor, one of the device meta, or a parameter without a shape yet has no"
            " values to compare.",
            slug="tensor-without-values",
            hint="Compare the results of a run with real tensors.",
        )


def _devices(expected: Any, got: Any) -> int | None:
    """0 for two values at the same place, 1 for two places, None when neither is a tensor."""
    tensors = [value for value in (expected, got) if isinstance(value, torch.Tensor)]
    if not tensors:
        return None
    if len(tensors) == 2:
        return 0 if tensors[0].device == tensors[1].device else 1
    return 0 if tensors[0].device.type == "cpu" else 1


def _same(expected: Any, got: Any) -> bool:
    if expected is got:
        return True
    try:
        equal = expected == got
        return bool(equal.all()) if hasattr(equal, "all") else bool(equal)
    except Exception:  # an object may refuse to be compared
        return False
