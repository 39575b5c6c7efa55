"""Assertions of a graph about values, in ONNX.

ONNX has no operator that fails. One result is therefore gathered at index 0 of an axis of size 1,
and at index 1, which is an error of ONNX Runtime, where an assertion does not hold.
"""

from __future__ import annotations

from typing import Any

from onnxscript import opset18 as op

__all__ = ["asserted", "is_all_true", "is_any_true"]

_BOOL, _INT64 = 9, 7  # numbers of onnx.TensorProto


def asserted(value: Any, *conditions: Any) -> Any:
    """The value where all conditions hold, an error of ONNX Runtime where one does not."""
    holds = [op.Reshape(op.Cast(condition, to=_BOOL), [1]) for condition in conditions]
    together = op.Cast(op.Concat(*holds, axis=0), to=_INT64)
    all_hold = op.ReduceMin(together, keepdims=0)
    # index 0 of one value where all hold, else index 1, which is out of bounds
    index = op.Sub(op.Constant(value_int=1), all_hold)
    return op.Gather(op.Unsqueeze(value, [0]), index, axis=0)


def is_all_true(self: Any) -> Any:
    """``aten::_is_all_true``: True too for a tensor without elements."""
    numbers = op.Reshape(op.Cast(self, to=_INT64), [-1])
    ones = op.Concat(numbers, op.Constant(value_ints=[1]), axis=0)
    return op.Cast(op.ReduceMin(ones, keepdims=0), to=_BOOL)


def is_any_true(self: Any) -> Any:
    """``aten::_is_any_true``: False for a tensor without elements."""
    numbers = op.Reshape(op.Cast(self, to=_INT64), [-1])
    zeros = op.Concat(numbers, op.Constant(value_ints=[0]), axis=0)
    return op.Cast(op.ReduceMax(zeros, keepdims=0), to=_BOOL)
