"""Compiles an exported graph ahead of time with AOTInductor."""

from __future__ import annotations

import copy
import json
import logging
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch._inductor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument

from ...contract.places import formulas_of, spelled_axis
from ...core.errors import ExportError
from ...trace.graph import Graph

__all__ = [
    "CONDITIONS",
    "LAYOUTS",
    "Package",
    "as_tensor",
    "compile_graph",
    "with_tensors_for_ints",
]

logger = logging.getLogger(__name__)
#: where the metadata of a package has what the inputs have to obey, and how they have to lie
CONDITIONS = "onlooker.conditions"
LAYOUTS = "onlooker.layouts"


@dataclass(frozen=True, slots=True)
class Package:
    """A compiled graph: the content of the package, and the weights that it has to be given, by
    name.
    """

    content: bytes
    weights: Mapping[str, torch.Tensor]


def compile_graph(graph: Graph) -> Package:
    """The package of a graph of torch, without its weights.

    :raises ExportError: ``aoti-refused`` with the message of the compiler
    """
    program = graph.artifact
    about = {
        CONDITIONS: json.dumps(formulas_of(graph.plan, graph.contract, spelled_axis(graph.names))),
        LAYOUTS: json.dumps(_layouts(graph)),
    }
    options = {"aot_inductor.package_constants_in_so": False, "aot_inductor.metadata": about}
    with tempfile.TemporaryDirectory(prefix="onlooker-") as folder:
        path = str(Path(folder, "package.pt2"))
        try:
            with warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore")
                ready = with_tensors_for_ints(program)
                torch._inductor.aoti_compile_and_package(
                    ready, package_path=path, inductor_configs=options
                )
        except Exception as error:
            raise ExportError(
                f"{graph.name} cannot be compiled by AOTInductor: {_shortened(error)}",
                slug="aoti-refused",
                hint="The torch program of the same plan may hold: export with to='torch'.",
            ) from error
        content = Path(path).read_bytes()
    return Package(content, {**program.constants, **program.state_dict})


def _shortened(error: Exception) -> str:
    """The class and the first lines: a compiler says a lot."""
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:3])[:500]}"


def with_tensors_for_ints(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The program, taking for every int ``n`` an empty tensor of shape ``(n, 0)``: AOTInductor
    drops ints.

    Upstream: ``AOTICompiledModel.__call__`` keeps tensors only (torch 2.13). This may go when it
    passes ints on.
    """
    ints = {
        n.name: n
        for n in program.graph.nodes
        if n.op == "placeholder" and isinstance(n.meta["val"], torch.SymInt)
    }
    if not ints:
        return program
    module = torch.fx.GraphModule(program.graph_module, copy.deepcopy(program.graph))
    module.meta.update(program.graph_module.meta)
    nodes = [node for node in module.graph.nodes if node.op == "placeholder"]
    for node in nodes:
        if node.name in ints:
            _carry(module.graph, node, nodes[-1])
    module.recompile()
    signature = copy.copy(program.graph_signature)
    specs = [
        (
            InputSpec(InputKind.USER_INPUT, TensorArgument(spec.arg.name), None)
            if getattr(spec.arg, "name", "") in ints
            else spec
        )
        for spec in signature.input_specs
    ]
    made = program._update(module, type(signature)(specs, signature.output_specs))
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
    node.replace_all_uses_with(read, delete_user_cb=lambda user: user is not read)
    node.meta["val"], read.meta["val"] = carrier, size


def as_tensor(value: Any) -> Any:
    """An int as the shape of an empty tensor."""
    return torch.empty((value, 0), dtype=torch.uint8) if type(value) is int else value


def _layouts(graph: Graph) -> list[list[int] | None]:
    """Per input the order of its dimensions in memory; None for an int.

    :raises ExportError: ``aoti-refused`` for an input with gaps
    """
    program = graph.artifact
    values = {
        node.name: node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"
    }
    slots = [
        s.arg.name for s in program.graph_signature.input_specs if s.kind == InputKind.USER_INPUT
    ]
    found: list[list[int] | None] = []
    for slot, path in zip(slots, graph.names, strict=True):
        value = values[slot]
        if not isinstance(value, torch.Tensor):
            found.append(None)
            continue
        order = _order(value)
        if not value.permute(order).is_contiguous():
            raise ExportError(
                f"{path} was exported with gaps in memory, which AOTInductor would take for the"
                " layout of every call.",
                slug="aoti-refused",
                hint="Call the model with contiguous tensors while it is watched.",
            )
        found.append(order)
    return found


def _order(value: torch.Tensor) -> list[int]:
    """The dimensions from the outermost in memory to the innermost."""
    if value.is_contiguous():
        return list(range(value.ndim))
    strides = [
        int(stride) if isinstance(stride, int) else int(stride.node.hint)
        for stride in value.stride()
    ]
    return sorted(range(value.ndim), key=lambda dim: -strides[dim])
