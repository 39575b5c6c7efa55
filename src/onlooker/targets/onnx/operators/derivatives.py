"""Derivatives of activations that torch has an operator for and decomposes for no converter."""

from __future__ import annotations

from typing import Any

from onnxscript import opset18 as op

__all__ = ["mish_backward", "silu_backward"]


def silu_backward(grad_output: Any, self: Any) -> Any:
    """``aten::silu_backward``, of ``x * sigmoid(x)``."""
    one = op.CastLike(op.Constant(value_float=1.0), self)
    gate = op.Sigmoid(self)
    slope = op.Mul(gate, op.Add(one, op.Mul(self, op.Sub(one, gate))))
    return op.Mul(grad_output, slope)


def mish_backward(grad_output: Any, self: Any) -> Any:
    """``aten::mish_backward``, of ``x * tanh(softplus(x))``."""
    one = op.CastLike(op.Constant(value_float=1.0), self)
    gate = op.Tanh(op.Softplus(self))
    of_gate = op.Mul(op.Sigmoid(self), op.Sub(one, op.Mul(gate, gate)))
    return op.Mul(grad_output, op.Add(gate, op.Mul(self, of_gate)))
