"""Changes a graph of torch.export in place of a trace: its sizes, its conditions and its names stay those
that are proven.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument
from torch.fx import Node

from ...torch_internals.fake_tensors import FakeTensorMode, mode_of
from ...torch_internals.graph_modules import called, copied_module, with_module

__all__ = ["PRODUCTS", "Editing", "axis_of_outputs"]

_ATEN = torch.ops.aten
#: of each product the argument with weights, and the axis of it that has the outputs
PRODUCTS = {
    _ATEN.linear.default: (1, 0),
    _ATEN.matmul.default: (1, 1),
    _ATEN.mm.default: (1, 1),
    _ATEN.addmm.default: (2, 1),
    **{
        operator: (1, 0)
        for packet in (_ATEN.conv1d, _ATEN.conv2d, _ATEN.conv3d)
        for operator in (packet.default, packet.padding)
    },
    _ATEN.conv_transpose1d.default: (1, 1),
    _ATEN.conv_transpose2d.input: (1, 1),
    _ATEN.conv_transpose3d.input: (1, 1),
}


class Editing:
    """A program of torch.export that is changed: a copy, which shares the weights that stay."""

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        self.program = program
        self._module = copied_module(program)
        self.graph = self._module.graph
        self.specs = list(program.graph_signature.input_specs)
        self._state = dict(program.state_dict)
        self.nodes = {node.name: node for node in self.graph.nodes}
        self._mode = mode_of(self.graph.nodes) or FakeTensorMode()

    def weight(self, name: str) -> torch.Tensor:
        """The numbers of a weight."""
        weight: torch.Tensor = self.program.state_dict[name]
        return weight.detach()

    def users_of(self, name: str) -> list[Node]:
        """The nodes that read a weight."""
        spec = self._spec_of(name)
        return list(self.nodes[spec.arg.name].users)

    def _spec_of(self, name: str) -> InputSpec:
        found: InputSpec = next(one for one in self.specs if one.target == name)
        return found

    @contextlib.contextmanager
    def in_place_of(self, name: str) -> Iterator[Callable[[str, torch.Tensor], Node]]:
        """Inside the block nodes are added before all others; gives a function that adds a buffer,
        whose placeholder stands before that of the weight.
        """
        spec = self._spec_of(name)

        def buffer(what: str, value: torch.Tensor) -> Node:
            return self.add_buffer(f"{name}_{what}", value, spec)

        first = next(node for node in self.graph.nodes if node.op != "placeholder")
        with self.graph.inserting_before(first):
            yield buffer
        self.specs.remove(spec)

    def add_buffer(self, name: str, value: torch.Tensor, before: InputSpec) -> Node:
        """A buffer of this name, whose placeholder stands before that of an input."""
        with self.graph.inserting_before(self.nodes[before.arg.name]):
            node = self.graph.placeholder(f"b_{name.replace('.', '_')}")
        node.meta["val"] = self._mode.from_tensor(value, static_shapes=True)
        added = InputSpec(InputKind.BUFFER, TensorArgument(node.name), name, persistent=True)
        self.specs.insert(self.specs.index(before), added)
        self._state[name] = value.contiguous()
        return node

    def drop(self, spec: InputSpec) -> None:
        """Takes a weight out that nothing reads."""
        self.graph.erase_node(self.nodes[spec.arg.name])
        self.specs.remove(spec)
        self._state.pop(str(spec.target), None)

    def put(self, name: str, made: Node) -> None:
        """Lets all read a node in the place of a weight, which goes."""
        spec = self._spec_of(name)
        old = self.nodes[spec.arg.name]
        old.replace_all_uses_with(made)
        self.graph.erase_node(old)
        del self._state[name]

    def finished(self) -> torch.export.ExportedProgram:
        """The program as it was changed."""
        program = self.program
        made = with_module(program, self._module, inputs=self.specs, state_dict=self._state)
        made._guards_code = list(program._guards_code)
        return made

    def call(self, operator: Any, *arguments: Any) -> Node:
        """A node that computes, with the fake tensor of its result."""
        with self._mode, _without_new_guards(self._mode):
            return called(self.graph, operator, *arguments)


@contextlib.contextmanager
def _without_new_guards(mode: Any) -> Iterator[None]:
    """Inside the block nothing is decided about sizes: each further operator keeps its shape."""
    if mode.shape_env is None:
        yield
        return
    with mode.shape_env.suppress_guards():
        yield


def axis_of_outputs(weight: Node, user: Node) -> int | None:
    """The axis with the outputs, where the user is a product that reads this node as its weights;
    None where it is something else.
    """
    if user.op != "call_function" or user.target not in PRODUCTS:
        return None
    at, axis = PRODUCTS[user.target]
    places = [number for number, value in enumerate(user.args) if value is weight]
    rank = weight.meta["val"].ndim
    is_matrix = user.target is not _ATEN.matmul.default or rank == 2
    return axis if places == [at] and is_matrix else None
