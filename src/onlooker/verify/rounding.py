"""Runs of a model in which products round their numbers as a precision does.

How far may a program of ``int4`` be from its model? No number is right for all models: a layer of norms
forgives what a layer of scores does not. So the model itself tells: inside the block each product of torch
reads weights and activations that were rounded first, and the result is as far from the plain one as a
right conversion is. A conversion that mixes up an axis, a scale or a layer is several times as far.
Activations of a calibrated precision are rounded between the bounds that the same product had in the calls
that were calibrated on; the first product of one run is the first one of another.

The runtimes round in ways of their own (blocks of 32 or whole rows, with or without an offset). The rounding
here is the coarsest of these, and the bounds of :mod:`onlooker.verify.distances` leave room beside it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ..core.precision import precision_named
from ..torch_internals.modes import TorchDispatchMode
from ..torch_internals.tensor_marks import address_of

__all__ = ["Bounds", "rounded_products"]

_ATEN = torch.ops.aten
#: of each product its two factors, and the axis of the second one that is summed over; None where all
#: but the first one are
_PRODUCTS: dict[Any, tuple[int, int, int | None]] = {
    _ATEN.mm.default: (0, 1, 0),
    _ATEN.addmm.default: (1, 2, 0),
    _ATEN.bmm.default: (0, 1, 1),
    _ATEN.baddbmm.default: (1, 2, 1),
    _ATEN.linear.default: (0, 1, 1),
    _ATEN.convolution.default: (0, 1, None),
}
#: attention as one operator: query, key and value
_ATTENTION = (
    _ATEN._scaled_dot_product_flash_attention_for_cpu.default,
    _ATEN._scaled_dot_product_attention_math.default,
)
#: how many numbers share a scale in int4
_BLOCK = 32


#: the least and the greatest number of an activation, by the number of the product in a run and the place
#: of the argument
Bounds = dict[tuple[int, int], tuple[float, float]]


class rounded_products(TorchDispatchMode):
    """Inside the block products round what they read, to the numbers of a precision; ``weights`` are
    the tensors that a conversion rounds once and for all. With ``measures`` nothing is rounded, and
    ``bounds`` are noted.
    """

    def __init__(
        self,
        precision: str,
        weights: Iterable[torch.Tensor],
        bounds: Bounds | None = None,
        *,
        measures: bool = False,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kind = precision_named(precision)
        self._bounds: Bounds = {} if bounds is None else bounds
        self._measures = measures
        self._count = 0
        self._memory = {_memory_of(weight) for weight in weights} - {None}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Returns the result for rounded factors."""
        if func is _ATEN.embedding.default:
            return self._embedded(func(*args, **(kwargs or {})))
        factors, axis = _factors(func)
        rounds = self._kind.is_calibrated or self._kind.name == "fp16"
        if not rounds:
            rounds = any(self._is_weight(args[at]) for at in factors)
        if not factors or not rounds:
            return func(*args, **(kwargs or {}))
        arguments = list(args)
        self._count += 1
        for number, at in enumerate(factors):
            if self._measures:
                self._measure(args[at], at)
            else:
                place = (self._count, at)
                arguments[at] = self._rounded(args[at], axis, place, is_second=number == 1)
        result = func(*arguments, **(kwargs or {}))
        if self._kind.name == "fp16" and not self._measures and isinstance(result, torch.Tensor):
            return result.half().to(result.dtype)
        return result

    def _embedded(self, rows: torch.Tensor) -> torch.Tensor:
        """The rows of a table, which has numbers of 8 bits in all precisions of integers."""
        if self._measures or rows.dtype not in _FLOATS or not rows.numel():
            return rows
        if self._kind.is_integer:
            return _symmetric(rows, [rows.ndim - 1], 8)
        return rows.to(_SHORT[self._kind.name]).to(rows.dtype)

    def _is_weight(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor) and _memory_of(value) in self._memory

    def _measure(self, value: Any, at: int) -> None:
        """Notes the bounds of an activation."""
        if (
            isinstance(value, torch.Tensor)
            and value.dtype in _FLOATS
            and not self._is_weight(value)
        ):
            finite = value[value.isfinite()]
            if finite.numel():
                low, high = finite.min().item(), finite.max().item()
                known = self._bounds.get((self._count, at), (low, high))
                self._bounds[self._count, at] = min(known[0], low), max(known[1], high)

    def _rounded(
        self, value: Any, axis: int | None, place: tuple[int, int], *, is_second: bool
    ) -> Any:
        """A factor as the precision has it; ``axis`` is what is summed over in the second one."""
        if not isinstance(value, torch.Tensor) or value.dtype not in _FLOATS or not value.numel():
            return value
        if self._kind.name == "fp16":
            return value.half().to(value.dtype)
        if self._kind.name == "bf16":
            return value.bfloat16().to(value.dtype) if self._is_weight(value) else value
        if self._is_weight(value):
            return _rounded_weight(value, axis, is_second, self._kind.bits)
        if self._kind.is_calibrated:
            low, high = value.min(), value.max()
            if place in self._bounds:
                low, high = map(value.new_tensor, self._bounds[place])
            return _to_integers(value, low, high)
        rows = value.abs().amax(-1, keepdim=True)
        return _to_integers(value, -rows, rows)


def _factors(operator: Any) -> tuple[tuple[int, ...], int | None]:
    """The places of what a product multiplies, and the axis of the second one that is summed over."""
    if operator in _ATTENTION:
        return (0, 1, 2), None
    if operator in _PRODUCTS:
        left, right, axis = _PRODUCTS[operator]
        return (left, right), axis
    return (), None


_FLOATS = (torch.float32, torch.float64)
_SHORT = {"fp16": torch.float16, "bf16": torch.bfloat16}


def _memory_of(tensor: torch.Tensor) -> int | None:
    """The address of the memory that a tensor and its views lie in."""
    is_plain = tensor.layout == torch.strided and not tensor.is_meta
    return address_of(tensor) or None if is_plain else None


def _rounded_weight(value: torch.Tensor, axis: int | None, is_second: bool, bits: int) -> Any:
    """A weight as integers with scales: of 4 bits in blocks along the axis that is summed over, of 8
    bits with one scale for each output.
    """
    if not is_second:  # a weight on the left: a table of queries
        return _symmetric(value, [value.ndim - 1], bits)
    if axis is None:
        return _symmetric(value, list(range(1, value.ndim)), 8)
    if bits == 8 or value.shape[axis] < _BLOCK:
        return _symmetric(value, [axis], bits)
    size = value.shape[axis]
    moved = value.movedim(axis, -1)
    padded = torch.nn.functional.pad(moved, (0, -size % _BLOCK))
    padded = padded.reshape(*moved.shape[:-1], -1, _BLOCK)
    return _symmetric(padded, [padded.ndim - 1], bits).flatten(-2)[..., :size].movedim(-1, axis)


def _symmetric(value: torch.Tensor, dims: list[int], bits: int) -> torch.Tensor:
    most = 2 ** (bits - 1) - 1
    greatest = value.abs().amax(dims, keepdim=True)
    scale = torch.where(greatest == 0, torch.ones_like(greatest), greatest / most)
    return (value / scale).round() * scale


def _to_integers(value: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """Numbers rounded to one of 256 between two bounds, 0 among them; those beyond become the bound."""
    low, high = low.clamp(max=0), high.clamp(min=0)
    scale = ((high - low) / 255).nan_to_num(0, 0, 0)
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    return ((value / scale).round() * scale).clamp(low, high)
