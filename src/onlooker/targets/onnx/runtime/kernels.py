"""Finds out, before a model is converted, whether ONNX Runtime computes in its dtypes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ....core.errors import OnlookerWarning, UnsupportedError, warn
from ....torch_internals.graph_modules import nodes_of
from ....trace.graph import Graph
from .session import started
from .settings import SessionSettings

__all__ = ["dtypes_of", "no_kernels", "warn_of_kernels", "why_not_computed"]

_HINT = (
    "Export model.float() or model.half() for this machine, or give other providers:"
    " program.verify(providers=['CUDAExecutionProvider']) where ONNX Runtime has them."
)


def warn_of_kernels(graphs: Sequence[Graph], settings: SessionSettings) -> None:
    """Warns, ``no-kernels``, where the models that graphs become will not run with these settings.

    A conversion takes minutes for a real model, and this some hundredths of a second.

    :raises UsageError: ``bad-providers`` for providers that cannot be started
    """
    found = dict.fromkeys(dtype for graph in graphs for dtype in dtypes_of(graph))
    asked = found or {torch.float32: None}  # the providers have to start in any case
    reasons = {dtype: why_not_computed(dtype, settings) for dtype in asked}
    lacking = {dtype: reason for dtype, reason in reasons.items() if reason}
    if lacking:
        told = "; ".join(f"{dtype} ({reason})" for dtype, reason in lacking.items())
        warn(
            OnlookerWarning(
                f"ONNX Runtime does not compute in {told}. The model is converted and can be saved,"
                " and it is neither run nor verified here.",
                slug="no-kernels",
                hint=_HINT,
            )
        )


def no_kernels(name: str, reason: str) -> UnsupportedError:
    """The error of a graph that ONNX Runtime does not run."""
    return UnsupportedError(
        f"ONNX Runtime does not run {name} here: {reason}.", slug="no-kernels", hint=_HINT
    )


def dtypes_of(graph: Graph) -> tuple[torch.dtype, ...]:
    """The float dtypes in which a graph of torch multiplies or adds: an operator takes two tensors
    of the dtype and gives one.

    What is only moved, or converted, needs no such kernels.
    """
    found = (dtype for node in nodes_of(graph.artifact) for dtype in _computed_in(node))
    return tuple(dict.fromkeys(found))


def _computed_in(node: Any) -> Iterator[torch.dtype]:
    if node.op != "call_function":
        return
    result = _dtype_of(node)
    tensors = [arg for arg in node.args if isinstance(arg, torch.fx.Node)]
    same = [arg for arg in tensors if _dtype_of(arg) is result]
    if result is not None and result.is_floating_point and len(same) >= 2:
        yield result


def _dtype_of(node: Any) -> torch.dtype | None:
    value = node.meta.get("val")
    return value.dtype if isinstance(value, torch.Tensor) else None


def why_not_computed(dtype: torch.dtype, settings: SessionSettings) -> str:
    """Returns the error of ONNX Runtime for a product and a sum of matrices of this dtype; nothing
    where it takes them.

    :raises UsageError: ``bad-providers``
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        model = _product_and_sum(dtype)
    except TypeError:  # ONNX has no such dtype
        return ""
    try:
        return started(model, settings, options)[1]
    except onnxruntime.capi.onnxruntime_pybind11_state.InvalidGraph:
        return ""  # the operators of ONNX do not take it: the converter uses others


def _product_and_sum(dtype: torch.dtype) -> bytes:
    """A model of two operators, serialised."""
    from onnx import helper
    from onnx_ir.tensor_adapters import from_torch_dtype

    kind = int(from_torch_dtype(dtype))
    nodes = [
        helper.make_node("MatMul", ["x", "y"], ["product"]),
        helper.make_node("Add", ["product", "y"], ["sum"]),
    ]
    inputs = [helper.make_tensor_value_info(name, kind, [2, 2]) for name in ("x", "y")]
    outputs = [helper.make_tensor_value_info("sum", kind, [2, 2])]
    graph = helper.make_graph(nodes, "kernels", inputs, outputs)
    opset = helper.make_opsetid("", 18)
    content: bytes = helper.make_model(
        graph, opset_imports=[opset], ir_version=9
    ).SerializeToString()
    return content
