"""Operators of torch that converters have no function for, in operators that every converter has.

A function computes what its operator computes, for sizes that are numbers and for those of a trace; one
that is :class:`Sometimes` meant gives NotImplemented for arguments with which a converter has the operator.

Upstream: the tables of
https://github.com/pytorch/pytorch/tree/v2.13.0/torch/onnx/_internal/exporter/_torchlib and
https://github.com/openvinotoolkit/openvino/blob/master/src/frontends/pytorch/src/op_table.cpp. A line may
go when both have its operator.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.fx import Graph, Node, map_arg

from ..proofs.operators import origin_of, written_by
from ..repairs.loops.recurrent_steps import steps_stay_sizes
from ..torch_internals.graph_modules import called, changed_graphs, nodes_of
from ..torch_internals.operators import composed
from ..torch_internals.sizes import statically_known_true
from ..torch_internals.tracing import decomp
from .matrices import MATRICES, is_real

__all__ = [
    "TAKEN_APART",
    "Sometimes",
    "derivatives_by_parts",
    "slices_measured_anew",
    "take_apart",
]

_aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Sometimes:
    """A function that takes an operator apart for the arguments for which ``is_meant`` is true."""

    is_meant: Callable[..., Any]
    function: Callable[..., Any]

    def __call__(self, *args: Any, **options: Any) -> Any:
        """The result of the operator; NotImplemented for other arguments."""
        return (
            self.function(*args, **options) if self.is_meant(*args, **options) else NotImplemented
        )


def _of_an_axis(function: Callable[..., Any]) -> Sometimes:
    """The function, which leaves a tensor without axes to the converter."""
    return Sometimes(lambda x, *_, **__: x.dim(), function)


def _selected(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    x, mask = torch.broadcast_tensors(x, mask)  # type: ignore[no-untyped-call]
    return x[mask]


def _is_negative(x: torch.Tensor) -> torch.Tensor:
    """``signbit``, which is set in -0.0 too."""
    if not x.dtype.is_floating_point:
        return x < 0
    return (x < 0) | ((x == 0) & (1 / x < 0))


def _with_sign(x: torch.Tensor, sign: torch.Tensor) -> torch.Tensor:
    """``copysign``"""
    size = x.abs().to(torch.result_type(x, sign))
    if not size.dtype.is_floating_point:
        size = size.to(torch.get_default_dtype())
    return torch.where(_is_negative(sign), -size, size)


def _angle(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """``atan2``: the angle to the axis of x, with the signs of zeros."""
    height, width = y.abs(), x.abs()
    slope = torch.where(height == width, 1.0, height / width)
    slope = torch.where((height == 0) & (width == 0), 0.0, slope)
    angle = slope.atan()
    return _with_sign(torch.where(_is_negative(x), math.pi - angle, angle), y)


def _hypotenuse(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """``hypot``, whose squares may be beyond all numbers."""
    longer, shorter = torch.maximum(x.abs(), y.abs()), torch.minimum(x.abs(), y.abs())
    share = torch.where(longer == shorter, 1.0, shorter / longer)
    return longer * (1 + share * share).sqrt()


def _are_longer(
    x: torch.Tensor, dim: int, index: torch.Tensor, values: torch.Tensor, *_: Any, **__: Any
) -> bool:
    """True for values of which an index takes the first ones alone: converters want one shape."""
    pairs = zip(index.shape, values.shape, strict=True)
    return any(not statically_known_true(taken == given) for taken, given in pairs)


def _with_those_taken(operator: Callable[..., Any]) -> Callable[..., Any]:
    """The operator for the values that the index takes."""

    def scattered(
        x: torch.Tensor,
        dim: int,
        index: torch.Tensor,
        values: torch.Tensor,
        *rest: Any,
        **options: Any,
    ) -> Any:
        for axis, size in enumerate(index.shape):
            values = values.narrow(axis, 0, size)
        return operator(x, dim, index, values, *rest, **options)

    return scattered


def _scattered(
    x: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    values: torch.Tensor,
    _: str,
    **options: bool,
) -> Any:
    """``scatter_reduce`` to means"""
    total, count = (
        own.scatter_reduce(dim, index, others, "sum", **options)
        for own, others in ((x, values), (torch.ones_like(x), torch.ones_like(values)))
    )
    return total / count if x.dtype.is_floating_point else total // count


def _reduced(*args: Any, **options: Any) -> Any:
    """``scatter_reduce``, to means too."""
    function = _scattered if args[4] == "mean" else _aten.scatter_reduce.two
    return function(*args, **options)


def _reduced_rows(
    x: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    values: torch.Tensor,
    reduce: str,
    **options: bool,
) -> torch.Tensor:
    """``index_reduce``"""
    shape = [1] * x.dim()
    shape[dim] = -1
    places = index.long().reshape(shape).expand(values.shape)
    return x.scatter_reduce(dim, places, values, reduce, **options)


def _put(
    x: torch.Tensor, index: torch.Tensor, values: torch.Tensor, accumulate: bool = False
) -> torch.Tensor:
    flat = x.flatten().index_put((index.flatten(),), values.flatten(), accumulate)
    return flat.reshape(x.shape)


def _is_by_a_mask(
    x: torch.Tensor, indices: Sequence[Any], values: torch.Tensor, accumulate: bool = False
) -> bool:
    """True for one mask, and values that are the same at all its places, as ``x[:, mask] = 0``."""
    masks = [one for one in indices if one is not None]
    if len(masks) != 1 or masks[0].dtype is not torch.bool:
        return False
    behind = _axes_behind(x, indices, masks[0])
    return values.dim() <= behind or bool(statically_known_true(values.shape[-1 - behind] == 1))


def _masked(
    x: torch.Tensor, indices: Sequence[Any], values: torch.Tensor, accumulate: bool = False
) -> torch.Tensor:
    """``index_put`` by one mask, of values that are the same at all its places."""
    (mask,) = (one for one in indices if one is not None)
    behind = _axes_behind(x, indices, mask)
    if values.dim() > behind:  # the axis of the places stands for all axes of the mask
        shape = (
            values.shape[: -1 - behind],
            (1,) * mask.dim(),
            values.shape[values.dim() - behind :],
        )
        values = values.reshape([size for sizes in shape for size in sizes])
    mask = mask.reshape(*mask.shape, *(1,) * behind)
    return torch.where(mask, x + values if accumulate else values, x)


def _axes_behind(x: torch.Tensor, indices: Sequence[Any], mask: torch.Tensor) -> int:
    """The number of axes behind those of the only mask among some indices."""
    return x.dim() - (len(indices) - 1) - mask.dim()


def _has_a_mask_inside(x: torch.Tensor, indices: Sequence[Any], *_: Any) -> bool:
    """True for ``x[:, mask]`` and ``x[mask, i]``, of which converters read other axes, or none."""
    masks = [one for one in indices if one is not None and one.dtype is torch.bool]
    return bool(masks) and len(indices) > 1


def _with_places(operator: Any) -> Callable[..., Any]:
    """The operator, which is given the places of a mask instead of the mask."""

    def computed(x: torch.Tensor, indices: Sequence[Any], *args: Any) -> Any:
        places = list[Any]()
        for one in indices:
            is_mask = one is not None and one.dtype is torch.bool
            places += one.nonzero().unbind(1) if is_mask else [one]
        return operator(x, places, *args)

    return computed


def _written(*args: Any) -> Any:
    """``index_put`` by a mask that is not alone."""
    return (_masked if _is_by_a_mask(*args) else _with_places(_aten.index_put.default))(*args)


def _up_to(x: torch.Tensor, dim: int, neutral: Any) -> torch.Tensor:
    """Per element of an axis all elements up to it, as a further last axis: ``[1, 2, 3]`` gives
    ``[[1, n, n], [1, 2, n], [1, 2, 3]]``. What is behind is ``neutral``.
    """
    rows = x.movedim(dim, -1)
    places = torch.arange(rows.shape[-1], device=x.device)
    return torch.where(places <= places[:, None], rows[..., None, :], neutral)


def _running_product(x: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    """``cumprod``"""
    counted = x.to(dtype) if dtype or x.dtype.is_floating_point else x.to(torch.int64)
    return _up_to(counted, dim, 1).prod(-1).movedim(-1, dim)


def _running_sum_of_powers(x: torch.Tensor, dim: int) -> Any:
    """``logcumsumexp``"""
    return _up_to(x, dim, -math.inf).logsumexp(-1).movedim(-1, dim)


def _running(best: Callable[..., torch.Tensor], side: int) -> Callable[[torch.Tensor, int], Any]:
    """``cummax`` and ``cummin``: the best so far, and the last place that has it."""

    def run(x: torch.Tensor, dim: int) -> Any:
        is_float = x.dtype.is_floating_point
        worst = side * math.inf if is_float else torch.iinfo(x.dtype).min
        if side > 0 and not is_float:
            worst = torch.iinfo(x.dtype).max
        so_far = _up_to(x, dim, worst)
        values = best(so_far, -1)
        places = torch.arange(x.shape[dim], device=x.device)
        has_it = (so_far == values[..., None]) & (places <= places[:, None])
        found = torch.where(has_it, places, 0).amax(-1)
        return values.movedim(-1, dim), found.movedim(-1, dim)

    return run


def _smallest(x: torch.Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    """``kthvalue``"""
    parts = [part.narrow(dim, k - 1, 1) for part in x.sort(dim)]
    return tuple(part if keepdim else part.squeeze(dim) for part in parts)


def _middle(x: torch.Tensor, dim: int, keepdim: bool = False) -> Any:
    """``median`` of an axis: the lower one of two middle values."""
    return _smallest(x, (x.shape[dim] - 1) // 2 + 1, dim, keepdim)


def _middle_of_numbers(x: torch.Tensor, dim: int, keepdim: bool = False) -> Any:
    """``nanmedian`` of an axis"""
    behind = torch.where(x.isnan(), math.inf, x) if x.dtype.is_floating_point else x
    count = (x == x).sum(dim, keepdim=True)
    place = (count - 1).clamp(min=0) // 2
    parts = [part.gather(dim, place) for part in behind.sort(dim)]
    return tuple(part if keepdim else part.squeeze(dim) for part in parts)


def _different(
    x: torch.Tensor, return_inverse: bool = False, return_counts: bool = False, dim: None = None
) -> Any:
    """``unique_consecutive``"""
    flat = x.flatten()
    is_first = torch.cat([flat.new_ones(1, dtype=torch.bool), flat[1:] != flat[:-1]])
    is_first = is_first[: flat.shape[0]]
    numbers = is_first.cumsum(0)
    begins = is_first.nonzero()[:, 0]
    ends = torch.cat([begins[1:], numbers.new_full((1,), flat.shape[0])])
    return flat[begins], (numbers - 1).reshape(x.shape), ends - begins


def _different_in_order(
    x: torch.Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> Any:
    """``unique``"""
    values, places = x.flatten().sort()
    found, numbers, counts = _different(values)
    return found, torch.zeros_like(places).scatter(0, places, numbers).reshape(x.shape), counts


def _before(
    rows: torch.Tensor,
    values: torch.Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: torch.Tensor | None = None,
) -> torch.Tensor:
    """``searchsorted``: how many elements of a sorted row lie before each value."""
    if sorter is not None:
        rows = rows.gather(-1, sorter)
    if rows.dim() > 1:
        rows = rows[..., None, :]
    is_right = right or side == "right"
    is_before = rows <= values[..., None] if is_right else rows < values[..., None]
    return is_before.sum(-1, dtype=torch.int32 if out_int32 else torch.int64)


def _buckets(
    x: torch.Tensor, limits: torch.Tensor, *, out_int32: bool = False, right: bool = False
) -> torch.Tensor:
    """``bucketize``"""
    return _before(limits, x, out_int32=out_int32, right=right)


def _counts(
    x: torch.Tensor, weights: torch.Tensor | None = None, minlength: Any = 0
) -> torch.Tensor:
    """``bincount``"""
    size: Any = torch.cat([x + 1, x.new_full((1,), minlength)]).max().item()
    if weights is None:
        weights = torch.ones_like(x, dtype=torch.int64)
    elif weights.dtype is not torch.float32:
        weights = weights.double()
    return weights.new_zeros((size,)).scatter_add(0, x.long(), weights)


def _by_own_numbers(
    x: torch.Tensor, weight: Any, bias: Any, mean: Any, spread: Any, training: bool, *settings: Any
) -> Any:
    """``batch_norm`` in training, which writes to what it keeps from call to call."""
    momentum, epsilon, _ = settings
    return torch.native_batch_norm(x, weight, bias, mean, spread, True, momentum, epsilon)[0]


def _has_own_divisor(
    x: torch.Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> bool:
    return divisor_override is not None and not ceil_mode


def _summed(
    x: torch.Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Any,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int,
) -> Any:
    """``avg_pool2d``, which divides the sums of its windows by another number than that of their places."""
    means = _aten.avg_pool2d.default(x, kernel_size, stride, padding)
    return means * (math.prod(kernel_size) / divisor_override)


def _complex_product(equation: str, tensors: Sequence[torch.Tensor], *, path: Any = None) -> Any:
    """``einsum`` of complex numbers."""
    return torch.complex(*_product_of_parts(equation, [], tensors))


def _times_complex(x: torch.Tensor, factor: complex) -> torch.Tensor:
    """A product with a complex number, ``1j * x``."""
    real, imaginary = (x.real, x.imag) if x.is_complex() else (x, torch.zeros_like(x))
    return torch.complex(
        real * factor.real - imaginary * factor.imag, real * factor.imag + imaginary * factor.real
    )


def _product_of_parts(
    equation: str, parts: list[torch.Tensor], rest: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, Any]:
    """The real and the imaginary part of the product, which is linear in each of its tensors."""
    if not rest:
        return torch.einsum(equation, parts), 0
    first, *others = rest
    if not first.is_complex():
        return _product_of_parts(equation, [*parts, first], others)
    real, imaginary = _product_of_parts(equation, [*parts, first.real], others)
    of_imaginary, negative = _product_of_parts(equation, [*parts, first.imag], others)
    return real - negative, imaginary + of_imaginary


def _distances(
    x: torch.Tensor, y: torch.Tensor, p: float = 2, compute_mode: int | None = None
) -> Any:
    """``cdist``: ``(..., n, k)`` and ``(..., m, k)`` give ``(..., n, m)``."""
    return torch.linalg.vector_norm(x.unsqueeze(-2) - y.unsqueeze(-3), p, -1)


def _of_numbers(choose: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """``fmax`` or ``fmin``: of a number and NaN it is the number."""

    def chosen(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        found = torch.where(y.isnan(), x, choose(x, y))
        return torch.where(x.isnan(), y, found)

    return chosen


def _combined(
    x: torch.Tensor, dim: int, index: torch.Tensor, values: torch.Tensor, *, reduce: str
) -> Any:
    """``scatter`` with ``reduce``, by the operator that has its place."""
    by = {"add": "sum", "multiply": "prod"}[reduce]
    return _with_those_taken(_aten.scatter_reduce.two)(x, dim, index, values, by)


def _pairwise(x: torch.Tensor, p: float = 2) -> torch.Tensor:
    """``pdist``: the distances of ``(n, k)`` to each other, of each pair once."""
    n = x.shape[0]
    places = torch.arange(n, device=x.device)
    is_later = (places.unsqueeze(0) > places.unsqueeze(1)).flatten()
    found: torch.Tensor = _distances(x, x, p).flatten()[is_later]
    return found


def _each_repeated(
    x: torch.Tensor, repeats: int, dim: int | None = None, *, output_size: int | None = None
) -> torch.Tensor:
    """``repeat_interleave`` by a number: each row stands so often beside itself."""
    rows, place = (x.flatten(), 0) if dim is None else (x, dim % x.dim())
    shape = [*rows.shape[: place + 1], repeats, *rows.shape[place + 1 :]]
    return rows.unsqueeze(place + 1).expand(shape).flatten(place, place + 1)


#: coefficients of the series of Stirling for the logarithm of the gamma function, and for its derivative
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680)
_STIRLING_OF_DIGAMMA = (1 / 12, -1 / 120, 1 / 252, -1 / 240)
#: an argument is shifted by so much, since the series are exact for large ones
_SHIFT = 8


def _log_of_gamma(x: torch.Tensor) -> torch.Tensor:
    """``lgamma``: by the series of Stirling, below 0.5 by the reflection of it."""
    is_low = x < 0.5
    y = torch.where(is_low, 1 - x, x)
    product = torch.ones_like(y)
    for step in range(_SHIFT):
        product = product * (y + step)
    z = y + _SHIFT
    series = sum(c / z ** (2 * k + 1) for k, c in enumerate(_STIRLING))
    found = _leading_terms(z) + series - product.log()
    # a large argument needs no shift, and its product may be beyond all numbers
    found = torch.where(y > 1e3, _leading_terms(y) + 1 / (12 * y), found)
    found = torch.where(y.isinf(), y, found)
    folded = (x - (x + 0.5).floor()).abs()  # whose sine has the same size
    reflected = math.log(math.pi) - (math.pi * folded).sin().abs().log() - found
    reflected = torch.where(x.isinf() | (folded == 0), math.inf, reflected)
    return torch.where(is_low, reflected, found)


def _leading_terms(z: torch.Tensor) -> torch.Tensor:
    """The terms of the series of Stirling before those with coefficients."""
    return (z - 0.5) * z.log() - z + 0.5 * math.log(2 * math.pi)


def _digamma(x: torch.Tensor) -> torch.Tensor:
    """``digamma``: by the derivative of the series of Stirling, below 0.5 by its reflection."""
    is_low = x < 0.5
    y = torch.where(is_low, 1 - x, x)
    before = torch.zeros_like(y)
    for step in range(_SHIFT):
        before = before + 1 / (y + step)
    z = y + _SHIFT
    series = sum(c / z ** (2 * k + 2) for k, c in enumerate(_STIRLING_OF_DIGAMMA))
    found = z.log() - 0.5 / z - series - before
    folded = x - (x + 0.5).floor()
    reflected = found - math.pi / (math.pi * folded).tan()
    reflected = torch.where(folded == 0, math.nan, reflected)
    reflected = torch.where(x == 0, -torch.ones_like(x) / x, reflected)
    return torch.where(is_low, reflected, found)


def _is_of_all(x: torch.Tensor, dim: Sequence[int] = (), keepdim: bool = False) -> bool:
    return not dim and not keepdim


def _has_order(x: torch.Tensor, dim: int) -> bool:
    return bool(x.dim()) and x.dtype is not torch.bool


def _log_of_sigmoid(x: torch.Tensor) -> torch.Tensor:
    """``log_sigmoid``, whose sigmoid may be too small for a number."""
    return x.clamp(max=0) - (-x.abs()).exp().log1p()


def _cross_entropy(
    x: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    positive: torch.Tensor | None = None,
    reduction: int = 1,
) -> torch.Tensor:
    """``binary_cross_entropy_with_logits``"""
    factor = 1 if positive is None else (positive - 1) * target + 1
    loss = (1 - target) * x - factor * _log_of_sigmoid(x)
    loss = loss if weight is None else loss * weight
    return (loss, loss.mean(), loss.sum())[reduction] if reduction else loss


def _sum_of_powers(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """``logaddexp``, whose powers may be beyond all numbers."""
    distance = torch.where(x == y, 0.0, (x - y).abs())
    return torch.maximum(x, y) + (-distance).exp().log1p()


def _is_among(
    x: Any, others: Any, *, assume_unique: bool = False, invert: bool = False
) -> torch.Tensor:
    """``isin``"""
    found: torch.Tensor = (x.unsqueeze(-1) == others.flatten()).any(-1)
    return ~found if invert else found


def _are_ints(*tensors: Any) -> bool:
    return not any(
        tensor.dtype.is_floating_point or tensor.dtype.is_complex
        for tensor in tensors
        if isinstance(tensor, torch.Tensor)
    ) and not any(isinstance(tensor, (float, torch.SymFloat)) for tensor in tensors)


def _sign(x: torch.Tensor) -> torch.Tensor:
    """``sign`` of ints: ONNX Runtime looks at 32 bits of them."""
    return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)


def _quotient_of_ints(x: torch.Tensor, y: Any, *, rounding_mode: str) -> torch.Tensor:
    """``div`` of ints that is rounded: converters compute it with floats, which lack some of the digits."""
    if rounding_mode == "floor":
        return torch.floor_divide(x, y)
    dtype = torch.result_type(x, y)
    x, y = (one.long() if isinstance(one, torch.Tensor) else one for one in (x, y))
    quotient = torch.floor_divide(x.abs(), abs(y))
    other = y if isinstance(y, torch.Tensor) else torch.full_like(x, y)
    return torch.where((x < 0) == (other < 0), quotient, -quotient).to(dtype)


def _rest_of_ints(x: torch.Tensor, y: Any) -> torch.Tensor:
    """``fmod`` of ints"""
    rest: torch.Tensor = x - _quotient_of_ints(x, y, rounding_mode="trunc") * y
    return rest


def _rest(x: Any, y: Any) -> torch.Tensor:
    """``remainder`` of floats: converters compute ``x - floor(x / y) * y``, which loses the digits of large numbers,
    and ONNX Runtime has an exact ``fmod``.
    """
    if not isinstance(x, torch.Tensor):
        x = torch.full_like(y, x, dtype=torch.result_type(x, y))
    rest = torch.fmod(x, y)
    return torch.where(_is_on_other_side(rest, y), rest + y, rest)


def _is_on_other_side(rest: torch.Tensor, y: Any) -> torch.Tensor:
    """Whether a rest of ``fmod``, which has the sign of the number, has another sign than the divisor."""
    is_other: torch.Tensor = (rest != 0) & ((rest < 0) != (y < 0))
    return is_other


def _with_diagonal(
    x: torch.Tensor, numbers: torch.Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> torch.Tensor:
    """``diagonal_scatter``, which a write to a diagonal is: ``x.diagonal().fill_(0)``."""
    plane = x.movedim((dim1, dim2), (-2, -1))
    rows = torch.arange(plane.shape[-2], device=x.device)
    columns = torch.arange(plane.shape[-1], device=x.device)
    is_on_it = columns - rows[:, None] == offset
    places = (rows + min(offset, 0)).clamp(0, numbers.shape[-1] - 1)
    found = torch.where(is_on_it, numbers.index_select(-1, places)[..., None], plane)
    return found.movedim((-2, -1), (dim1, dim2))


def _is_written_diagonal(node: Node) -> bool:
    """True for the diagonal of a tensor that is written in place."""
    return node.target is _aten.diagonal.default and any(map(written_by, node.users))


def _whole_quotient(x: torch.Tensor, y: Any) -> torch.Tensor:
    """``floor_divide`` of floats, by the exact rest as torch computes it: the floor of a rounded quotient may be one
    more.
    """
    rest = torch.fmod(x, y)
    quotient = (x - rest) / y
    quotient = torch.where(_is_on_other_side(rest, y), quotient - 1, quotient)
    whole = torch.floor(quotient)
    whole = torch.where(quotient - whole > 0.5, whole + 1, whole)
    if not isinstance(y, torch.Tensor):
        return x / y if y == 0 else whole
    return torch.where(y == 0, x / y, whole)


def _quotient(x: torch.Tensor, y: Any, *, rounding_mode: str) -> torch.Tensor:
    """``div`` that is rounded"""
    if _are_ints(x, y):
        return _quotient_of_ints(x, y, rounding_mode=rounding_mode)
    return _whole_quotient(x, y)


def _shifted_bytes(x: torch.Tensor, bits: int) -> Any:
    """``>>`` of bytes, which torch's converter shifts with a sign."""
    return torch.floor_divide(x, 2**bits)


def _either(x: torch.Tensor, y: Any, alpha: Any = 1) -> torch.Tensor:
    """``add`` of masks"""
    return torch.logical_or(x, y)


def _are_masks(x: Any, y: Any, alpha: Any = 1) -> bool:
    return all(isinstance(one, torch.Tensor) and one.dtype is torch.bool for one in (x, y))


def _has_sizes_beyond(*args: Any) -> bool:
    """True for a transposed convolution of which sizes say how many places are added at the ends."""
    added = args[5] if len(args) > 5 else ()
    return any(isinstance(one, torch.SymInt) for one in added)


def _cut_at_the_ends(operator: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A transposed convolution with the most places at its ends, of which those are cut that sizes leave out."""

    def cut(
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        stride: list[int],
        padding: list[int],
        added: list[Any],
        groups: int = 1,
        dilation: Sequence[int] = (1,),
    ) -> torch.Tensor:
        n_dims = x.ndim - 2
        widths = [
            [*values] * (n_dims if len(values) == 1 else 1) for values in (stride, dilation, added)
        ]
        most = [max(step, gap) - 1 for step, gap in zip(*widths[:2], strict=True)]
        whole = operator(x, weight, bias, stride, padding, most, groups, list(dilation))
        for dim, (greatest, one) in enumerate(zip(most, widths[2], strict=True), 2):
            whole = whole.narrow(dim, 0, whole.shape[dim] - (greatest - one))
        return whole

    return cut


#: operator of torch -> the function of other operators that does the same
TAKEN_APART: dict[Any, Callable[..., Any]] = {
    **{operator: Sometimes(is_real, function) for operator, function in MATRICES.items()},
    _aten._native_batch_norm_legit_functional.default: decomp.decomposition_table[
        _aten._native_batch_norm_legit_functional.default
    ],
    _aten._cdist_forward.default: _distances,
    _aten._unique2.default: _different_in_order,
    **dict.fromkeys(
        (_aten.__rshift__.Scalar, _aten.bitwise_right_shift.Tensor_Scalar),
        Sometimes(lambda x, bits: x.dtype is torch.uint8, _shifted_bytes),
    ),
    _aten.add.Tensor: Sometimes(_are_masks, _either),
    _aten.amax.default: Sometimes(_is_of_all, lambda x: _aten.amax.default(x.flatten(), [0])),
    _aten.amin.default: Sometimes(_is_of_all, lambda x: _aten.amin.default(x.flatten(), [0])),
    _aten.atan2.default: _angle,
    _aten.avg_pool2d.default: Sometimes(_has_own_divisor, _summed),
    _aten.batch_norm.default: Sometimes(
        lambda x, weight, bias, mean, spread, training, *_: training and mean is not None,
        _by_own_numbers,
    ),
    _aten.binary_cross_entropy_with_logits.default: _cross_entropy,
    _aten.bincount.default: _counts,
    _aten.bucketize.Tensor: _buckets,
    _aten.cdist.default: _distances,
    **{
        operator: Sometimes(_has_sizes_beyond, _cut_at_the_ends(operator))
        for operator in (
            _aten.conv_transpose1d.default,
            _aten.conv_transpose2d.input,
            _aten.conv_transpose3d.input,
        )
    },
    _aten.copysign.Tensor: _with_sign,
    _aten.cross_entropy_loss.default: partial(composed, _aten.cross_entropy_loss.default),
    _aten.cummax.default: Sometimes(_has_order, _running(torch.amax, -1)),
    _aten.cummin.default: Sometimes(_has_order, _running(torch.amin, 1)),
    _aten.cumprod.default: _of_an_axis(_running_product),
    _aten.diagonal_scatter.default: _with_diagonal,
    _aten.digamma.default: _digamma,
    **dict.fromkeys(
        (_aten.div.Scalar_mode, _aten.div.Tensor_mode),
        Sometimes(
            lambda x, y, rounding_mode=None: (
                rounding_mode == "floor" or (rounding_mode and _are_ints(x, y))
            ),
            _quotient,
        ),
    ),
    _aten.floor_divide.default: Sometimes(
        lambda x, y: isinstance(x, torch.Tensor) and not _are_ints(x, y), _whole_quotient
    ),
    _aten.einsum.default: Sometimes(
        lambda _, tensors, **path: any(tensor.is_complex() for tensor in tensors), _complex_product
    ),
    _aten.fmax.default: _of_numbers(torch.maximum),
    _aten.fmin.default: _of_numbers(torch.minimum),
    **dict.fromkeys((_aten.fmod.Scalar, _aten.fmod.Tensor), Sometimes(_are_ints, _rest_of_ints)),
    _aten.hypot.default: _hypotenuse,
    # a write of the model is the operator without ``_`` where it is taken apart
    **dict.fromkeys(
        (_aten.index_put.default, _aten.index_put_.default),
        Sometimes(lambda *args: _is_by_a_mask(*args) or _has_a_mask_inside(*args), _written),
    ),
    _aten.index.Tensor: Sometimes(_has_a_mask_inside, _with_places(_aten.index.Tensor)),
    _aten.index_reduce.default: _reduced_rows,
    _aten.isin.Tensor_Tensor: _is_among,
    _aten.kthvalue.default: _of_an_axis(_smallest),
    _aten.lgamma.default: _log_of_gamma,
    _aten.log_sigmoid.default: _log_of_sigmoid,
    _aten.logaddexp.default: _sum_of_powers,
    _aten.logcumsumexp.default: _of_an_axis(_running_sum_of_powers),
    _aten.masked_select.default: _selected,
    _aten.median.default: lambda x: _middle(x.flatten(), 0)[0],
    _aten.median.dim: _of_an_axis(_middle),
    _aten.nanmedian.default: lambda x: _middle_of_numbers(x.flatten(), 0)[0],
    _aten.nanmedian.dim: _of_an_axis(_middle_of_numbers),
    _aten._pdist_forward.default: _pairwise,
    _aten.pdist.default: _pairwise,
    **dict.fromkeys(
        (_aten.mul.Scalar, _aten.mul.Tensor),  # a trace has ``1j`` as an argument of either
        Sometimes(
            lambda x, factor: isinstance(factor, complex) and torch.is_floating_point(x.real),
            _times_complex,
        ),
    ),
    _aten.put.default: _put,
    _aten.repeat_interleave.self_int: Sometimes(
        lambda x, repeats, *_, **__: not isinstance(repeats, int), _each_repeated
    ),
    **dict.fromkeys(
        (_aten.remainder.Scalar, _aten.remainder.Tensor),
        Sometimes(lambda x, y: not _are_ints(x, y), _rest),
    ),
    _aten.remainder.Scalar_Tensor: _rest,
    _aten.scatter.reduce: _combined,
    _aten.scatter.src: Sometimes(_are_longer, _with_those_taken(_aten.scatter.src)),
    _aten.scatter_add.default: Sometimes(_are_longer, _with_those_taken(_aten.scatter_add.default)),
    _aten.scatter_reduce.two: Sometimes(
        lambda *args, **options: args[4] == "mean" or _are_longer(*args),
        _with_those_taken(_reduced),
    ),
    _aten.searchsorted.Tensor: _before,
    _aten.sign.default: Sometimes(_are_ints, _sign),
    _aten.signbit.default: _is_negative,
    _aten.unique_consecutive.default: Sometimes(
        lambda x, inverse=False, counts=False, dim=None: dim is None, _different
    ),
}


def take_apart(
    program: torch.export.ExportedProgram, table: Mapping[Any, Callable[..., Any]] = TAKEN_APART
) -> torch.export.ExportedProgram:
    """The program without the operators of the table; itself where it has none of them."""
    if not any(
        (node.target in table and _is_meant(table[node.target], node)) or _is_written_diagonal(node)
        for node in nodes_of(program)
    ):
        return program
    with (
        warnings.catch_warnings(),
        torch.no_grad(),
        changed_graphs(program, slices_measured_anew),
        steps_stay_sizes(program),
    ):
        warnings.simplefilter("ignore")  # torch copies its tree specs by a deprecated way
        return program.run_decompositions(dict(table))  # type: ignore[no-any-return]


def slices_measured_anew(graph: Graph) -> None:
    """Lets another trace find out how long the parts are that end at a value, ``x[:, : lengths.max()]``.

    It may know ``Min(s0, u0)``, which ``rebind_unbacked`` of torch takes neither for a symbol nor for a number. Of a
    tensor that was written in place a copy is cut: functionalisation cuts twice, and no result has the second length.

    Upstream: upstream/torch_slice_to_a_value.py and
    https://github.com/pytorch/pytorch/blob/v2.13.0/torch/fx/experimental/symbolic_shapes.py
    """
    places = {node: place for place, node in enumerate(graph.nodes)}
    last_writes: dict[Any, int] = {}
    for node, place in places.items():
        last_writes.update(dict.fromkeys(map(origin_of, written_by(node)), place))
    for node in graph.find_nodes(op="call_function", target=_aten.slice.Tensor):
        base, place = node.args[0], places[node]
        ends_at_a_value = bool(node.meta.pop("unbacked_bindings", None))
        if ends_at_a_value and last_writes.get(origin_of(base), place) < place:
            with graph.inserting_before(node):
                node.replace_input_with(base, called(graph, _aten.clone.default, base))


def _is_meant(function: Callable[..., Any], node: Node) -> bool:
    """True where a function takes the operator of a node apart."""
    if not isinstance(function, Sometimes):
        return True
    args, options = map_arg((node.args, node.kwargs), lambda one: one.meta["val"])
    return bool(function.is_meant(*args, **options))


def derivatives_by_parts(graph: Graph) -> None:
    """Lets functions of other operators compute the derivatives of activations that no converter has.

    These operators have kernels of their own, so that no table of decompositions takes them apart.
    """
    for operator in (_aten.silu_backward.default, _aten.mish_backward.default):
        for node in graph.find_nodes(op="call_function", target=operator):
            node.target = decomp.decomposition_table[operator]
