"""Compares what a program gives with what the model gives, leaf by leaf."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from ctypes import c_float
from dataclasses import dataclass
from typing import Any

import torch

from ...core.path import Attr, Path
from ...core.structure import Structure, Tree
from ...core.verdict import Scores
from ..numbers import as_numbers, is_same
from ..unusual import unusual
from .leaves import subtracted

__all__ = [
    "Agreement",
    "agreement",
    "agreement_of_trees",
    "leaf_difference",
    "leaves_like",
    "score_agreement",
    "sufficient_atol",
    "tolerance_of",
]

_EXACT = 0.0
_TOLERANCES = {
    **{
        torch.float16: 1e-2,
        torch.complex32: 1e-2,
        torch.bfloat16: 5e-2,
        torch.float64: 1e-5,
        torch.complex128: 1e-5,
    },
    # one step from a value to the next
    **{dtype: torch.finfo(dtype).eps for dtype in (torch.float8_e4m3fn, torch.float8_e4m3fnuz)},
    **{dtype: torch.finfo(dtype).eps for dtype in (torch.float8_e5m2, torch.float8_e5m2fnuz)},
}


@dataclass(frozen=True, slots=True)
class Agreement:
    """The largest difference over all leaves, and the first thing that is wrong."""

    difference: float = 0.0
    note: str = ""

    @property
    def holds(self) -> bool:
        """True when nothing is wrong."""
        return not self.note


def tolerance_of(dtype: torch.dtype, atol: float) -> float:
    """The tolerance of a dtype: ``atol`` for float32, more for the short ones, none for ints and
    bools.
    """
    if not (dtype.is_floating_point or dtype.is_complex):
        return _EXACT
    return max(atol, _TOLERANCES.get(dtype, atol))


def leaf_difference(expected: Any, got: Any) -> float:
    """The largest absolute difference of two leaves; infinite when they cannot be compared.

    NaN and infinities at the same place are equal; NaN against a number is an infinite difference. So is the
    difference of two floats of Python, but for those that tensors of float32 have.
    """
    if not isinstance(expected, torch.Tensor):
        if isinstance(got, torch.Tensor) and got.ndim == 0:
            got = got.item()
        if _is_of_float32(expected) and _is_of_float32(got):
            return float(abs(expected - got))
        return 0.0 if type(expected) is type(got) and _is_equal(expected, got) else math.inf
    if (
        not isinstance(got, torch.Tensor)
        or any(unusual(tensor) is not None for tensor in (expected, got))
        or _kind(expected) != _kind(got)
    ):
        return math.inf
    if expected.numel() == 0:
        return 0.0
    left, right = expected.detach().cpu(), got.detach().cpu()
    return 0.0 if is_same(left, right) else float(subtracted(left, right)[0].max())


def _is_of_float32(value: Any) -> bool:
    """True for a finite float of Python that is a number of float32, as ``tensor.item()`` gives."""
    return type(value) is float and math.isfinite(value) and c_float(value).value == value


def _is_equal(expected: Any, got: Any) -> bool:
    """True for equal objects, and for two NaN. Arrays compare item by item, and are equal as a whole; what
    does not say whether it is equal is not.
    """
    try:
        if type(expected).__module__ == "numpy" and hasattr(expected, "tobytes"):
            same_kind = (expected.shape, expected.dtype) == (got.shape, got.dtype)
            return bool(
                same_kind and ((expected == got) | ((expected != expected) & (got != got))).all()
            )
        return bool(expected == got) or bool(expected != expected and got != got)
    except (AttributeError, TypeError, ValueError):
        return False


def agreement(
    paths: Iterable[Path], expected: Sequence[Any], got: Sequence[Any], *, atol: float = 1e-5
) -> Agreement:
    """Compares leaves in their order.

    A floating leaf agrees when its difference is at most ``atol`` times (1 + its largest finite
    value); shapes, dtypes, ints and bools must be equal, and floats of Python that no tensor of float32 has.
    """
    if len(expected) != len(got):
        return Agreement(math.inf, f"{len(got)} outputs where the model gives {len(expected)}")
    worst = 0.0
    for path, left, right in zip(paths, expected, got, strict=True):
        difference = leaf_difference(left, right)
        worst = max(worst, difference)
        if difference and (math.isinf(difference) or difference > _allowed(left, atol)):
            return Agreement(
                worst, f"{path.code() or 'output'}: {_described(left, right, difference)}"
            )
    return Agreement(worst)


def agreement_of_trees(expected: Tree[Any], got: Tree[Any], *, atol: float = 1e-5) -> Agreement:
    """Compares two trees, which must hold the same things: the attributes of an object in any
    order, all else in the same one.
    """
    leaves = leaves_like(expected, got)
    if leaves is None:
        return Agreement(math.inf, "the result has other parts than the model's")
    return agreement(expected.structure.paths(), expected.leaves, leaves, atol=atol)


def leaves_like(expected: Tree[Any], got: Tree[Any]) -> list[Any] | None:
    """The leaves of ``got`` in the order of ``expected``; None where it holds other things."""
    return _leaves_like(expected.structure, got.structure, iter(got.leaves))


def _leaves_like(wanted: Structure, made: Structure, leaves: Iterator[Any]) -> list[Any] | None:
    """The next leaves, which ``made`` holds, in the order of ``wanted``; None where it holds others."""
    if wanted.is_leaf or made.is_leaf:
        return [next(leaves)] if wanted.is_leaf and made.is_leaf else None
    are_attributes = all(isinstance(entry, Attr) for entry in made.entries)
    if wanted.entries != made.entries and not are_attributes:
        return None
    parts = dict(wanted.parts)
    if parts.keys() != set(made.entries):
        return None
    found = {entry: _leaves_like(parts[entry], child, leaves) for entry, child in made.parts}
    ordered = [found[entry] for entry in wanted.entries]
    if any(part is None for part in ordered):
        return None
    return [leaf for part in ordered if part is not None for leaf in part]


def score_agreement(expected: Sequence[Any], got: Sequence[Any]) -> Scores | None:
    """Compares scores, the first tensor of floats with two dimensions or more: returns how near
    they come to those of the model, and in how many rows of the last dimension the largest number
    stands at the same place; None where there is no such tensor.

    The outputs of a model of transformers begin with their scores, ``logits``.

    >>> score_agreement([torch.tensor([[1.0, 2.0], [4.0, 3.0]])], [torch.tensor([[1.5, 2.0], [3.0, 4.0]])])
    Scores(difference=1.0, agreeing=1, count=2)
    """
    for left, right in zip(expected, got, strict=False):
        if isinstance(left, torch.Tensor) and left.is_floating_point() and left.ndim >= 2:
            rows = left.numel() // left.shape[-1] if left.numel() else 0
            if not isinstance(right, torch.Tensor) or left.shape != right.shape:
                return Scores(math.inf, 0, rows)
            if not rows:
                return Scores()
            same = left.detach().cpu().argmax(-1) == right.detach().cpu().argmax(-1)
            return Scores(leaf_difference(left, right), int(same.sum()), rows)
    return None


def sufficient_atol(expected: Tree[Any], got: Tree[Any]) -> float:
    """The least ``atol`` with which two trees agree; infinite where something else than floats is
    wrong.
    """
    leaves = leaves_like(expected, got)
    if leaves is None:
        return math.inf
    worst = 0.0
    for left, right in zip(expected.leaves, leaves, strict=True):
        difference = leaf_difference(left, right)
        if not difference or difference <= _allowed(left, 0.0):
            continue
        is_of_floats = not isinstance(left, torch.Tensor) or left.dtype.is_floating_point
        if math.isinf(difference) or not is_of_floats:
            return math.inf
        worst = max(worst, difference / _allowed(left, 1.0))
    return worst


def _allowed(expected: Any, atol: float) -> float:
    if isinstance(expected, float):
        return atol * (1.0 + abs(expected))
    if not isinstance(expected, torch.Tensor):
        return _EXACT
    allowed = tolerance_of(expected.dtype, atol)
    if allowed == _EXACT or expected.numel() == 0:
        return allowed
    numbers = as_numbers(expected.detach())
    values = numbers[numbers.isfinite()]
    return allowed * (1.0 + (float(values.abs().max()) if values.numel() else 0.0))


def _described(expected: Any, got: Any, difference: float) -> str:
    if not isinstance(expected, torch.Tensor) or not isinstance(got, torch.Tensor):
        return f"{_shown(got)} where the model gives {_shown(expected)}"
    for value, words in (
        (expected, "the model gives {}, which cannot be compared"),
        (got, "it is {}"),
    ):
        if found := unusual(value):
            return words.format(found.what)
    if _kind(expected) != _kind(got):
        return f"{_named(got)} where the model gives {_named(expected)}"
    return "NaN against a number" if math.isinf(difference) else f"differs by {difference:.3g}"


def _kind(value: torch.Tensor) -> tuple[torch.Size, torch.dtype, str]:
    return value.shape, value.dtype, value.device.type


def _named(value: torch.Tensor) -> str:
    where = "" if value.device.type == "cpu" else f" on {value.device.type}"
    return f"{value.dtype} {tuple(value.shape)}{where}"


def _shown(value: Any) -> str:
    return f"a tensor {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)
