"""The shapes of results in a converted model: forgotten where the model is simplified, and written as
the trace has them for those who look for patterns.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

__all__ = ["shapes_of_the_trace_forgotten", "write_traced_shapes"]


@contextlib.contextmanager
def shapes_of_the_trace_forgotten(model: Any) -> Iterator[None]:
    """Inside the block no result of the model has a shape; on exit its outputs have theirs again.

    The shapes are those of the example. ``x[:, :8]`` of five columns has five, which the converter
    writes down as the size of ``x``; where a graph serves longer rows too, what simplifies the model
    by these shapes, as ONNX Runtime does when it loads it, would drop the cut. Shapes that hold for
    all sizes are inferred again.
    """
    outputs = [(value, value.shape) for value in model.graph.outputs]
    for node in model.graph.all_nodes():
        for value in node.outputs:
            value.shape = None
    try:
        yield
    finally:
        for value, shape in outputs:
            value.shape = shape


def write_traced_shapes(model: Any, program: torch.export.ExportedProgram) -> None:
    """Gives results that have the name of an operator of ``program`` the shape that they have there.

    ``program`` is the one that the converter made, whose operators are those of ONNX by name. A size
    that changes is an expression in the names of the trace. Sizes that hold for the example only may
    be among them: what is made of a model with these shapes has to be tried.
    """
    import onnx_ir

    shapes = _traced_shapes(program)
    for node in model.graph:
        for value in node.outputs:
            traced = shapes.get(value.name)
            known = value.shape
            if traced is not None and (known is None or len(known) == len(traced)):
                value.shape = onnx_ir.Shape(
                    [size if isinstance(size, int) else str(size) for size in traced]
                )


def _traced_shapes(program: torch.export.ExportedProgram) -> dict[str, Any]:
    """The shapes of the tensors of a program by the names of their nodes."""
    return {
        node.name: node.meta["val"].shape
        for module in program.graph_module.modules()
        if isinstance(module, torch.fx.GraphModule)  # a block of autocast is a graph of its own
        for node in module.graph.nodes
        if _is_tensor(node.meta.get("val"))
    }


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)
