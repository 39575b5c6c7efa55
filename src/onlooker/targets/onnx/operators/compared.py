"""Distances, for which torch's converter has no functions: every element is compared with every other, by the
rules of broadcasting.
"""

from __future__ import annotations

import math
from typing import Any

from onnxscript import opset18 as op

__all__ = ["distances"]


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
