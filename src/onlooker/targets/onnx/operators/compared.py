"""Distances and places in sorted rows, for which torch's converter has no functions: every element
is compared with every other, by the rules of broadcasting.
"""

from __future__ import annotations

import math
from typing import Any

from onnxscript import opset18 as op

__all__ = ["distances", "searchsorted"]

_INT32, _INT64 = 6, 7  # numbers of onnx.TensorProto


def distances(x1: Any, x2: Any, p: float, compute_mode: int | None = None) -> Any:
    """``aten::_cdist_forward``, the distances of ``torch.cdist``: ``(..., n, k)`` and
    ``(..., m, k)`` give ``(..., n, m)``.
    """
    gaps = op.Abs(op.Sub(op.Unsqueeze(x1, [-2]), op.Unsqueeze(x2, [-3])))
    if p == 2:
        return op.ReduceL2(gaps, [-1], keepdims=0)
    if p == math.inf:
        return op.ReduceMax(gaps, [-1], keepdims=0)
    if p == 0:
        differ = op.Not(op.Equal(gaps, op.CastLike(op.Constant(value_float=0.0), gaps)))
        return op.ReduceSum(op.CastLike(differ, x1), [-1], keepdims=0)
    power = op.CastLike(op.Constant(value_float=float(p)), gaps)
    total = op.ReduceSum(op.Pow(gaps, power), [-1], keepdims=0)
    return op.Pow(total, op.Reciprocal(power))


def searchsorted(
    sorted_sequence: Any,
    self: Any,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Any = None,
) -> Any:
    """``aten::searchsorted.Tensor``: how many elements of a sorted row lie before each value.

    The sorted rows have one axis, or those of the values before the last.
    """
    rows = sorted_sequence
    if sorter is not None:
        rows = op.GatherElements(rows, sorter, axis=-1)
    if len(sorted_sequence.shape) > 1:
        rows = op.Unsqueeze(rows, [-2])
    values = op.Unsqueeze(self, [-1])
    is_right = right or side == "right"
    before = op.LessOrEqual(rows, values) if is_right else op.Less(rows, values)
    found = op.ReduceSum(op.Cast(before, to=_INT64), [-1], keepdims=0)
    return op.Cast(found, to=_INT32) if out_int32 else found
