"""Operators on complex numbers that OpenVINO's front end lacks, in operators on real ones.

The front end knows a complex number as a pair (``view_as_complex``, ``view_as_real``), and has no operators
that make one of two parts, nor Fourier transforms. These are products with cosines and sines here:

    transform of x at k = sum over j of x[j] * (cos(2 pi j k / n) - i sin(2 pi j k / n))

Upstream: https://github.com/openvinotoolkit/openvino/blob/master/src/frontends/pytorch/src/op_table.cpp, where
``aten.view_as_complex.default`` stands and ``aten._fft_r2c.default`` does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..taken_apart import TAKEN_APART

__all__ = ["of_complex_numbers"]

_aten = torch.ops.aten
_OF_AN_AXIS = (
    _aten.mean.dim,
    _aten.select.int,
    _aten.slice.Tensor,
    _aten.sum.dim_IntList,
    _aten.unsqueeze.default,
)


def _complex(real: torch.Tensor, imaginary: torch.Tensor) -> torch.Tensor:
    parts = torch.broadcast_tensors(real, imaginary)  # type: ignore[no-untyped-call]
    return torch.view_as_complex(torch.stack(parts, -1))


def _parts(z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    pairs = torch.view_as_real(z)
    return pairs[..., 0], pairs[..., 1]


def _polar(size: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    return _complex(size * angle.cos(), size * angle.sin())


def _conjugate(z: torch.Tensor) -> torch.Tensor:
    if not z.is_complex():
        return z
    real, imaginary = _parts(z)
    return _complex(real, -imaginary)


def _size(z: torch.Tensor) -> Any:
    """``abs``"""
    return TAKEN_APART[_aten.hypot.default](*_parts(z)) if z.is_complex() else NotImplemented


def _angle(z: torch.Tensor) -> Any:
    if not z.is_complex():
        return NotImplemented
    real, imaginary = _parts(z)
    return TAKEN_APART[_aten.atan2.default](imaginary, real)


def _waves(rows: Any, columns: Any, count: Any, like: torch.Tensor) -> Any:
    """The cosines and sines of ``2 pi j k / count`` for all j and k."""
    steps = torch.arange(rows, device=like.device)[:, None] * torch.arange(
        columns, device=like.device
    )
    angles = (steps % count).to(like.dtype) * (2 * math.pi / count)
    return angles.cos(), angles.sin()


def _transformed(
    real: torch.Tensor, imaginary: torch.Tensor | None, dim: int, forward: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The transform along one axis."""
    real = real.movedim(dim, -1)
    count = real.shape[-1]
    cos, sin = _waves(count, count, count, real)
    sin = -sin if forward else sin
    if imaginary is None:
        found = real @ cos, real @ sin
    else:
        imaginary = imaginary.movedim(dim, -1)
        found = real @ cos - imaginary @ sin, real @ sin + imaginary @ cos
    return found[0].movedim(-1, dim), found[1].movedim(-1, dim)


def _divisor(sizes: Sequence[Any], normalization: int) -> Any:
    """By a number of torch: nothing, the root of the number of elements, this number."""
    return 1 if normalization == 0 else math.prod(sizes) ** (0.5 if normalization == 1 else 1)


def _of_complex(z: torch.Tensor, dims: Sequence[int], normalization: int, forward: bool) -> Any:
    """``_fft_c2c``"""
    real, imaginary = _parts(z)
    for dim in dims:
        real, imaginary = _transformed(real, imaginary, dim, forward)
    divisor = _divisor([z.shape[dim] for dim in dims], normalization)
    return _complex(real / divisor, imaginary / divisor)


def _of_real(x: torch.Tensor, dims: Sequence[int], normalization: int, onesided: bool) -> Any:
    """``_fft_r2c``"""
    real, imaginary = _transformed(x, None, dims[-1], forward=True)
    if onesided:
        half = x.shape[dims[-1]] // 2 + 1
        real, imaginary = (part.narrow(dims[-1], 0, half) for part in (real, imaginary))
    for dim in dims[:-1]:
        real, imaginary = _transformed(real, imaginary, dim, forward=True)
    divisor = _divisor([x.shape[dim] for dim in dims], normalization)
    return _complex(real / divisor, imaginary / divisor)


def _to_real(z: torch.Tensor, dims: Sequence[int], normalization: int, count: Any) -> Any:
    """``_fft_c2r``: the axis has half of the numbers, of which all but the first and, where ``count`` is
    even, the last stand for two.
    """
    real, imaginary = _parts(z)
    for dim in dims[:-1]:
        real, imaginary = _transformed(real, imaginary, dim, forward=False)
    half = real.shape[dims[-1]]
    place = torch.arange(half, device=z.device)
    is_alone = (place == 0) | (2 * place == count)
    cos, sin = _waves(half, count, count, real)
    times = torch.where(is_alone, 1.0, 2.0).to(real.dtype)[:, None]
    real, imaginary = real.movedim(dims[-1], -1), imaginary.movedim(dims[-1], -1)
    found = (real @ (cos * times) - imaginary @ (sin * times)).movedim(-1, dims[-1])
    return found / _divisor([found.shape[dim] for dim in dims], normalization)


def _on_pairs(operator: Any) -> Callable[..., Any]:
    """An operator that is given an axis, on the pairs."""

    def run(z: torch.Tensor, dim: Any = 0, *rest: Any, **options: Any) -> Any:
        if not z.is_complex():
            return NotImplemented
        if isinstance(dim, int):
            dims: Any = dim - (dim < 0)
        else:
            dims = [one - (one < 0) for one in dim or range(z.dim())]
        return torch.view_as_complex(operator(torch.view_as_real(z), dims, *rest, **options))

    return run


def _copied(x: torch.Tensor, *, dtype: torch.dtype | None = None, **options: Any) -> Any:
    """``to`` of real numbers to complex ones"""
    if dtype is None or not dtype.is_complex or x.is_complex():
        return NotImplemented
    real = x.to(dtype.to_real())
    return _complex(real, torch.zeros_like(real))


def of_complex_numbers() -> dict[Any, Any]:
    """Per operator the function of others that does the same."""
    return {
        _aten._conj.default: _conjugate,
        _aten._fft_c2c.default: _of_complex,
        _aten._fft_c2r.default: _to_real,
        _aten._fft_r2c.default: _of_real,
        _aten._to_copy.default: _copied,
        _aten.abs.default: _size,
        _aten.angle.default: _angle,
        _aten.complex.default: _complex,
        _aten.conj_physical.default: _conjugate,
        _aten.polar.default: _polar,
        **{operator: _on_pairs(operator) for operator in _OF_AN_AXIS},
    }
