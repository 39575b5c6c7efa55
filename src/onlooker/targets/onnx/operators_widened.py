"""Arguments that torch takes and the functions of torch's converter do not: indices of int32, and
a factor that is computed from sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnxscript import opset18 as op
from onnxscript.function_libs.torch_lib.ops.core import (
    aten_index,
    aten_index_put,
    aten_mul,
    aten_mul_scalar,
)

__all__ = ["index", "index_put", "times"]

_INT32, _INT64 = 6, 7  # numbers of onnx.TensorProto


def index(self: Any, indices: Sequence[Any]) -> Any:
    """``aten::index.Tensor``"""
    return aten_index(self, _wide(indices))


def index_put(self: Any, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Any:
    """``aten::index_put``"""
    return aten_index_put(self, _wide(indices), values, accumulate)


def times(self: Any, other: Any) -> Any:
    """``aten::mul.Scalar``: the scale of an attention over heads of any size is no number."""
    if isinstance(other, (int, float)):
        return aten_mul_scalar(self, other)
    return aten_mul(self, op.CastLike(other, self))


def _wide(indices: Sequence[Any]) -> list[Any]:
    return [each if each is None or each.dtype != _INT32 else _cast(each) for each in indices]


def _cast(value: Any) -> Any:
    """The tensor as int64, with the shape that the converter's own functions look at."""
    wide = op.Cast(value, to=_INT64)
    wide.shape, wide.dtype = value.shape, type(value.dtype)(_INT64)
    return wide
