"""Inputs for runtimes that take tensors of one memory layout, and no ints.

AOTInductor drops ints (``AOTICompiledModel.__call__`` of torch 2.13 keeps tensors only), and
ExecuTorch 1.5 makes an input without a type of one ("expected to have type None but was Int").
This may go when they pass ints on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument

from ..core.path import Path
from ..torch_internals.fake_tensors import FakeTensorMode
from ..torch_internals.graph_modules import (
    copied_module,
    input_names,
    placeholders_of,
    replace_for_others,
    with_module,
)
from ..trace.graph import Graph

__all__ = ["as_tensor", "fake_inputs", "laid", "layout_of", "with_tensors_for_ints"]


def with_tensors_for_ints(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The program, taking for every int ``n`` an empty tensor of shape ``(n, 0)``."""
    ints = {
        n.name: n
        for n in program.graph.nodes
        if n.op == "placeholder" and isinstance(n.meta["val"], torch.SymInt)
    }
    if not ints:
        return program
    module = copied_module(program)
    nodes = [node for node in module.graph.nodes if node.op == "placeholder"]
    for node in nodes:
        if node.name in ints:
            _carry(module.graph, node, nodes[-1])
    specs = [
        (
            InputSpec(InputKind.USER_INPUT, TensorArgument(spec.arg.name), None)
            if getattr(spec.arg, "name", "") in ints
            else spec
        )
        for spec in program.graph_signature.input_specs
    ]
    made = with_module(program, module, inputs=specs)
    if program.example_inputs is not None:
        args, kwargs = program.example_inputs
        made._example_inputs = (
            tuple(as_tensor(value) for value in args),
            {name: as_tensor(value) for name, value in kwargs.items()},
        )
    return made


def _carry(graph: torch.fx.Graph, node: torch.fx.Node, last: torch.fx.Node) -> None:
    """Lets a placeholder be a tensor, and reads the int from its shape."""
    size = node.meta["val"]
    others: list[Any] = [n.meta["val"] for n in graph.nodes if n.op == "placeholder"]
    modes = [
        value.fake_mode for value in others if hasattr(value, "fake_mode")
    ]  # all inputs have to be of one
    with modes[0] if modes else FakeTensorMode(shape_env=size.node.shape_env):
        carrier = torch.empty((size, 0), dtype=torch.uint8)
    with graph.inserting_after(last):
        read = graph.call_function(torch.ops.aten.sym_size.int, (node, 0))
    replace_for_others(node, read)
    node.meta["val"], read.meta["val"] = carrier, size


def as_tensor(value: Any) -> Any:
    """An int as the shape of an empty tensor."""
    return torch.empty((value, 0), dtype=torch.uint8) if type(value) is int else value


def fake_inputs(graph: Graph) -> Iterator[tuple[Path, Any]]:
    """Each input of a graph of torch with the fake tensor, or the int, that it was traced with."""
    program = graph.artifact
    nodes = placeholders_of(program)
    for name, path in zip(input_names(program), graph.names, strict=True):
        yield path, nodes[name].meta["val"]


def layout_of(value: torch.Tensor) -> list[int] | None:
    """The dimensions of a tensor from the outermost in memory to the innermost; None for one with
    gaps.
    """
    if value.is_contiguous():
        return list(range(value.ndim))
    strides = [
        int(stride) if isinstance(stride, int) else int(stride.node.hint)
        for stride in value.stride()
    ]
    order = sorted(range(value.ndim), key=lambda dim: -strides[dim])
    return order if value.permute(order).is_contiguous() else None


def laid(value: Any, device: str, order: Sequence[int] | None) -> torch.Tensor:
    """An input as the graph expects it: an int as a shape, a tensor in the memory layout of the
    export.

    :raises RuntimeError: for a negative int, and for a tensor that lies on another ``device``
    """
    tensor: torch.Tensor
    if not isinstance(value, torch.Tensor):
        if value < 0:
            raise RuntimeError(
                f"an int of a compiled graph cannot be negative, the call has {value}"
            )
        tensor = as_tensor(int(value))
        return tensor
    if device and value.device.type != device:
        raise RuntimeError(
            f"the compiled graph runs on {device}, and a tensor lies on {value.device}"
        )
    tensor = value.detach() if value.requires_grad else value
    if tensor.is_neg() or tensor.is_conj():
        tensor = tensor.resolve_neg().resolve_conj()
    if order is None:
        return tensor.contiguous()
    inverse = sorted(range(len(order)), key=lambda dim: order[dim])
    return tensor.permute(tuple(order)).contiguous().permute(inverse)
