"""Programs of torch.export: ``.pt2`` files, and programs in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind

from ..core.errors import UsageError
from ..pytrees.registry import register_flattening_functions
from ..torch_internals.trees import torch_pytree as pytree
from .exported import Declared, Exported, Port, tensor_for
from .torch_contents import contents_of_program

__all__ = ["open_program", "read_program"]

#: torch writes so where a range has no end
_UNBOUNDED = 2**31


def read_program(path: Path) -> torch.export.ExportedProgram:
    """The program in a file, read with the classes of caches registered.

    :raises UsageError: ``model-not-loaded``
    """
    try:
        with register_flattening_functions():
            return torch.export.load(path)
    except Exception as error:
        raise UsageError(
            f"The file {path} cannot be loaded by torch.export: {type(error).__name__}: {error}",
            slug="model-not-loaded",
            hint="Give a file that torch.export.save() of this version of torch wrote.",
        ) from error


def open_program(program: torch.export.ExportedProgram) -> Exported:
    """A program of torch.export, whose inputs are the leaves of its arguments, by their names in
    the graph.
    """
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    specs = [s for s in program.graph_signature.input_specs if s.kind is InputKind.USER_INPUT]
    names = [spec.arg.name for spec in specs]
    constants = {
        spec.arg.name: spec.arg.value for spec in specs if isinstance(spec.arg, ConstantArgument)
    }
    ranges = program.range_constraints
    inputs = tuple(
        _port(name, nodes[name].meta.get("val"), ranges) for name in names if name not in constants
    )
    ports = {port.name: port for port in inputs}
    with register_flattening_functions():
        module = program.module()

    def run(given: Mapping[str, Any]) -> Sequence[Any]:
        values = {name: _input(given[name], ports[name]) for name in ports}
        flat = [constants[name] if name in constants else values[name] for name in names]
        with register_flattening_functions(), torch.no_grad():
            args, kwargs = pytree.tree_unflatten(flat, program.call_spec.in_spec)
            return [
                leaf
                for leaf in pytree.tree_leaves(module(*args, **kwargs))
                if isinstance(leaf, torch.Tensor)
            ]

    contents = contents_of_program(program)
    outputs = tuple(_outputs(program))
    return Exported("torch.export", inputs, outputs, run, tuple(constants), contents)


def _input(value: Any, port: Port) -> Any:
    return tensor_for(value, port) if port.shape is not None else value


def _outputs(program: torch.export.ExportedProgram) -> Iterator[Port]:
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    for spec in program.graph_signature.output_specs:
        value = values.get(getattr(spec.arg, "name", ""))
        if spec.kind is OutputKind.USER_OUTPUT and isinstance(value, torch.Tensor):
            yield _port(spec.arg.name, value, program.range_constraints)


def _port(name: str, value: Any, ranges: Mapping[Any, Any]) -> Port:
    if not isinstance(value, torch.Tensor):
        return Port(name)
    return Port(name, str(value.dtype), tuple(_declared(size, ranges) for size in value.shape))


def _declared(size: Any, ranges: Mapping[Any, Any]) -> Declared:
    if isinstance(size, int):
        return Declared("", size, size)
    expression = size.node.expr
    found = ranges.get(expression)
    if found is None:
        return Declared(str(expression))
    is_open = bool(found.upper >= _UNBOUNDED)
    return Declared(str(expression), int(found.lower), None if is_open else int(found.upper))
