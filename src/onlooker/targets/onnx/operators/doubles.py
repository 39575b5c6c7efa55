"""Floats of Python in ONNX: doubles, as in Python.

torch's converter takes a float that is computed, ``x.shape[1] * ratio``, for one of 32 bits. ``50 * 0.58`` is 29.0 in
these and 28.999999999999996 in Python, and ``int`` of both differs. Here such a float has 64 bits until an
operator of tensors takes it, which gets it as before. Upstream:
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/onnx/_internal/exporter/_core.py (``_set_shape_type``).
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from onnxscript import opset18 as op

from ....patches.swap import swapped

__all__ = ["OF_NUMBERS", "floats_are_doubles"]

_FLOAT, _INT64, _DOUBLE = 1, 7, 11  # numbers of onnx.TensorProto
_WIDE = (torch.float64, torch.complex128)


def _double(number: Any) -> Any:
    return op.Cast(number, to=_DOUBLE)


def _item(tensor: Any) -> Any:
    """``aten::_local_scalar_dense``: the one element of a tensor."""
    kind = tensor.dtype
    wide = _DOUBLE if kind.is_floating_point() else kind if kind.name == "BOOL" else _INT64
    return op.Cast(op.Gather(op.Reshape(tensor, [-1]), 0), to=int(wide))


def _quotient(left: Any, right: Any) -> Any:
    return op.Div(_double(left), _double(right))


def _floor_quotient(left: Any, right: Any) -> Any:
    """``left // right`` of whole numbers, rounded down as in Python: Div of ONNX rounds towards 0."""
    return op.Div(op.Sub(left, op.Mod(left, right)), right)


def _rounded(number: Any, digits: None = None) -> Any:
    """``round`` to a whole number: halves go to the even one, as in Python."""
    return op.Cast(op.Round(number), to=_INT64)


#: the functions of numbers, by what a graph calls
OF_NUMBERS: dict[Callable[..., Any], Callable[..., Any]] = {
    operator.floordiv: _floor_quotient,
    operator.truediv: _quotient,
    round: _rounded,
    torch.ops.aten._local_scalar_dense.default: _item,
    torch.sym_float: _double,
}


@contextlib.contextmanager
def floats_are_doubles() -> Iterator[None]:
    """Inside the block torch's converter computes with floats of Python as doubles."""
    from onnxscript import evaluator

    from ....torch_internals.onnx_exporter import OpRecorder, exporter

    def described(value: Any, kind: Any, **options: Any) -> None:
        describe(value, kind, **options)
        if isinstance(kind, (float, torch.SymFloat)):
            value.dtype = type(value.dtype)(_DOUBLE)

    def converted(model: Any, node: torch.fx.Node, values: dict[str, Any], **others: Any) -> None:
        floats = [] if _keeps_doubles(node) else _floats_of(node)
        if not floats:
            convert(model, node, values, **others)
            return
        doubles = {one.name: values[one.name] for one in floats}
        with evaluator.default_as(recorder := OpRecorder(others["opset"], others["constant_farm"])):
            values.update({name: op.Cast(value, to=_FLOAT) for name, value in doubles.items()})
        others["graph_like"].extend(recorder.nodes)
        convert(model, node, values, **others)
        values.update(doubles)

    with (
        swapped(exporter, "_set_shape_type", described) as describe,
        swapped(exporter, "_handle_call_function_node_with_lowering", converted) as convert,
    ):
        yield


def _floats_of(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The floats among the arguments of a node."""
    given = node.all_input_nodes
    return [one for one in given if isinstance(one.meta.get("val"), (float, torch.SymFloat))]


def _keeps_doubles(node: torch.fx.Node) -> bool:
    """True for a node that computes a number, and for one of tensors of 64 bits."""
    results = [one.meta.get("val") for one in (node, *node.all_input_nodes)]
    tensors = [one for one in results if isinstance(one, torch.Tensor)]
    return not tensors or any(tensor.dtype in _WIDE for tensor in tensors)
