"""Arguments that torch takes and the functions of torch's converter do not: numbers that are computed
from sizes, indices of int32, axes to squeeze whose size is not 1, products of ints and floats by
``einsum``, and an order that equal elements keep.

``places % width`` has a number for ``width`` where the image has one size; where sizes change the
number is a result of the graph. What the converter does with numbers stays its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from onnxscript import opset18 as op
from onnxscript.function_libs.torch_lib.ops import core

__all__ = [
    "einsum",
    "in_order",
    "index",
    "index_put",
    "of_a_size",
    "power_of_a_size",
    "rolled",
    "squeezed",
]

_UINT8, _INT8, _INT16, _INT32, _INT64, _BOOL = 2, 3, 5, 6, 7, 9  # numbers of onnx.TensorProto
Function = Callable[..., Any]


def of_a_size(of_number: str, of_tensor: str) -> Function:
    """An operator of a tensor and a number: by the converter's function for a number, and by that
    for two tensors where the number is a result of the graph.
    """
    by_number, by_tensor = getattr(core, of_number), getattr(core, of_tensor)

    def translated(self: Any, other: Any) -> Any:
        if isinstance(other, (int, float)):
            return by_number(self, other)
        return by_tensor(self, op.CastLike(other, self))

    return translated


def power_of_a_size(self: Any, exponent: Any) -> Any:
    """``aten::pow.Scalar``: a number to the powers of a tensor."""
    if isinstance(self, (int, float)):
        return core.aten_pow_scalar(self, exponent)
    return op.Pow(op.CastLike(self, exponent), exponent)


def rolled(self: Any, shifts: Sequence[Any], dims: Sequence[int] = ()) -> Any:
    """``aten::roll``, by numbers and by sizes."""
    if all(isinstance(shift, int) for shift in shifts) or not dims:
        return core.aten_roll(self, shifts, dims)
    result = self
    for shift, dim in zip(shifts, dims, strict=True):
        axis = dim % len(self.shape)
        size = op.Shape(self, start=axis, end=axis + 1)
        count = op.Constant(value_ints=[shift]) if isinstance(shift, int) else shift
        moved = op.Mod(op.Reshape(count, [1]), size)
        start = op.Sub(size, moved)
        tail = op.Slice(result, start, size, [axis])
        head = op.Slice(result, [0], start, [axis])
        result = op.Concat(tail, head, axis=axis)
    return result


def squeezed(self: Any, dim: int | Sequence[int] | None = None) -> Any:
    """``aten::squeeze``, which leaves an axis whose size is not 1.

    Squeeze of ONNX refuses such an axis: one of 8 when the model is loaded, one of a size that changes
    when it runs.
    """
    rank = len(self.shape)
    chosen: Sequence[int] = range(rank)
    if dim is not None:
        chosen = [dim] if isinstance(dim, int) else dim
    axes = sorted({axis % rank for axis in chosen}) if rank else []
    if any(not isinstance(self.shape[axis], int) for axis in axes):
        # the sizes that stay, found when the model runs: of (n, 1, 8) with n = 1 they are (8,)
        shape = op.Shape(self)
        is_chosen = op.Constant(value_ints=[int(axis in axes) for axis in range(rank)])
        is_dropped = op.And(op.Equal(shape, [1]), op.Cast(is_chosen, to=_BOOL))
        kept = op.Compress(shape, op.Not(is_dropped), axis=0)
        return op.Reshape(self, kept, allowzero=1)
    ones = [axis for axis in axes if self.shape[axis] == 1]
    return op.Squeeze(self, ones) if ones else op.Identity(self)


def index(self: Any, indices: Sequence[Any]) -> Any:
    """``aten::index.Tensor``"""
    return core.aten_index(self, _wide(indices))


def index_put(self: Any, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Any:
    """``aten::index_put``"""
    return core.aten_index_put(self, _wide(indices), values, accumulate)


def einsum(equation: str, tensors: Sequence[Any], path: Any = None) -> Any:
    """``aten::einsum`` of one dtype: a table of positions is a product of ints and floats."""
    dtypes = [tensor.dtype for tensor in tensors]
    widest = max(dtypes, key=lambda dtype: (dtype.is_floating_point(), dtype.bitwidth))
    example = tensors[dtypes.index(widest)]
    alike = [
        tensor if tensor.dtype == widest else op.CastLike(tensor, example) for tensor in tensors
    ]
    return core.aten_einsum(equation, alike, path)


def in_order(
    self: Any, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> Any:
    """``aten::sort.stable``: of equal elements TopK of ONNX gives the one with the lower index first."""
    if self.dtype not in (_UINT8, _INT8, _INT16, _BOOL) or not len(self.shape):
        return core.aten_sort(self, dim, descending)
    wide = op.Cast(self, to=_INT32)  # TopK takes no others
    wide.shape, wide.dtype = self.shape, type(self.dtype)(_INT32)
    values, places = core.aten_sort(wide, dim, descending)
    return op.Cast(values, to=int(self.dtype)), places


def _wide(indices: Sequence[Any]) -> list[Any]:
    found: list[Any] = []
    for each in indices:
        is_narrow = each is not None and each.dtype == _INT32
        found.append(_cast(each) if is_narrow else each)
    return found


def _cast(value: Any) -> Any:
    """The tensor as int64, with the shape that the converter's own functions look at."""
    wide = op.Cast(value, to=_INT64)
    wide.shape, wide.dtype = value.shape, type(value.dtype)(_INT64)
    return wide
