"""Graphs of torch whose products read smaller weights, for the targets that compile such graphs.

A matrix of weights becomes integers with scales, from which the graph makes the matrix again. With 2
outputs of 64 inputs, ``int4`` stores 2 rows of 2 blocks of 32 integers, two in a byte, and a scale for
each block; the graph computes::

    uint8[2, 2, 16] -> lower and upper halves of the bytes: float[2, 2, 32] - 8
                    -> times float[2, 2, 1] -> [2, 64] -> linear

``int8`` has one integer in a byte, and one scale for each output, and so have convolutions in ``int4``.
``int8-static`` also rounds the activations that a product by weights reads, between the least and the
greatest number that calibration met there. Its operators are those that backends look for (``quantized_decomposed``, a
part of torch).

The tools of torchao (PT2E) begin with a module, which has to be exported again afterwards. Here the graph is
changed in place, so that its sizes, its conditions and its names stay those that are proven.
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument
from torch.fx import GraphModule, Node

from ..core.errors import ExportError
from ..core.precision import precision_named
from ..torch_internals.fake_tensors import FakeTensorMode
from ..torch_internals.operators import know_quantised_operators
from ..trace.graph import Graph
from ..trace.torch_run import runner_of

__all__ = ["INTEGERS", "reduced_graphs"]

#: the precisions that graphs of torch can be made in
INTEGERS = ("int8", "int4", "int8-static")
#: how many numbers of a row share a scale in int4
BLOCK = 32
_ATEN = torch.ops.aten
#: of each product the argument with weights, and the axis of it that has the outputs
_WEIGHTS = {
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
#: the least and the greatest integer of an activation
_LOW, _HIGH = -128, 127


def reduced_graphs(
    graphs: Sequence[Graph], precision: str | None, calibration: Any = None
) -> list[Graph]:
    """The graphs of torch in a precision of :data:`INTEGERS`; as they are for None.

    :raises ExportError: ``torch-not-quantised`` for a graph without a product by weights
    """
    if precision is None:
        return list(graphs)
    return [_reduced(graph, precision, (calibration or {}).get(graph.name, ())) for graph in graphs]


def _reduced(graph: Graph, precision: str, calls: Sequence[Sequence[Any]]) -> Graph:
    kind = precision_named(precision)
    bounds = _measured(graph, calls) if kind.is_calibrated else {}
    editing = _Editing(graph.artifact)
    weights = editing.weights_of_products()
    if not weights:
        raise ExportError(
            f"{graph.name} cannot have weights of {precision}: it has no product by a matrix of"
            " weights.",
            slug="torch-not-quantised",
        )
    for name, axis in weights.items():
        if kind.is_calibrated:
            editing.put_scaled_channels(name, axis)
        elif kind.bits == 8 or editing.program.state_dict[name].ndim > 2:
            editing.put_bytes(name, axis)
        else:
            editing.put_half_bytes(name, axis)
    for (product, at), (low, high) in bounds.items():
        editing.round_activation(product, at, low, high)
    program = editing.finished()
    run = runner_of(program, tuple(graph.names.values()))
    return replace(graph, artifact=program, run=run)


def _bytes_of(matrix: torch.Tensor, axis: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A matrix as integers of 8 bits, and the scale of each output, with as many axes."""
    others = [dim for dim in range(matrix.ndim) if dim != axis]
    scales = _scales(matrix.abs().amax(others, keepdim=True), 127)
    return (matrix / scales).round().to(torch.int8), scales


def _half_bytes_of(matrix: torch.Tensor, axis: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A matrix as integers of 4 bits, two in a byte, ``(outputs, blocks, 16)``, and the scale of each
    block, ``(outputs, blocks, 1)``.
    """
    rows = matrix.movedim(axis, 0).flatten(1)
    blocks = torch.nn.functional.pad(rows, (0, -rows.shape[1] % BLOCK))
    blocks = blocks.reshape(len(rows), -1, BLOCK)
    scales = _scales(blocks.abs().amax(2, keepdim=True), 7)
    lower, upper = (blocks / scales).round().add(8).to(torch.uint8).chunk(2, 2)
    return lower | (upper << 4), scales


def _scales(greatest: torch.Tensor, most: int) -> torch.Tensor:
    """The scale of each block, whose greatest number becomes ``most``; a block of zeros has 1."""
    return torch.where(greatest == 0, torch.ones_like(greatest), greatest / most)


class _Editing:
    """A program of torch.export that is changed: a copy, which shares the weights that stay."""

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        self.program = program
        self._module = GraphModule(program.graph_module, copy.deepcopy(program.graph))
        self._module.meta.update(program.graph_module.meta)
        self._graph = self._module.graph
        for node, known in zip(self._graph.nodes, program.graph.nodes, strict=True):
            node.name = known.name  # a copy calls an input of the name "input" another name
        self._specs = list(program.graph_signature.input_specs)
        self._state = dict(program.state_dict)
        self._nodes = {node.name: node for node in self._graph.nodes}
        values = (node.meta.get("val") for node in self._graph.nodes)
        modes = (value.fake_mode for value in values if hasattr(value, "fake_mode"))
        self._mode = next(modes, None) or FakeTensorMode()

    def weights_of_products(self) -> dict[str, int]:
        """By name, the floats that products alone read, all along one axis of outputs: that axis.

        A weight that something else reads too, as an embedding does that is tied to the scores,
        stays as it is.
        """
        found = {}
        for spec in self._specs:
            if spec.kind is not InputKind.PARAMETER and spec.kind is not InputKind.BUFFER:
                continue
            node = self._nodes[spec.arg.name]
            value = self.program.state_dict.get(str(spec.target))
            if not isinstance(value, torch.Tensor) or not value.is_floating_point():
                continue
            axes = {_axis_of_outputs(node, user) for user in node.users}
            if value.ndim >= 2 and value.numel() and len(axes) == 1 and None not in axes:
                found[str(spec.target)] = next(axis for axis in axes if axis is not None)
        return found

    def put_bytes(self, name: str, axis: int) -> None:
        """Makes a weight of integers of 8 bits."""
        matrix = self._weight(name)
        integers, scales = _bytes_of(matrix, axis)
        with self._in_place_of(name) as buffer:
            stored, scale = buffer("int8", integers), buffer("scale", scales)
            floats = self._call(_ATEN.to.dtype, stored, matrix.dtype)
            self._put(name, self._call(_ATEN.mul.Tensor, floats, scale))

    def put_half_bytes(self, name: str, axis: int) -> None:
        """Makes a weight of integers of 4 bits."""
        matrix = self._weight(name)
        integers, scales = _half_bytes_of(matrix, axis)
        moved = matrix.movedim(axis, 0).shape
        with self._in_place_of(name) as buffer:
            stored, scale = buffer("int4", integers), buffer("scale", scales)
            # by floats, since not every backend shifts bits: 16 * upper + lower
            whole = self._call(_ATEN.to.dtype, stored, matrix.dtype)
            upper = self._call(_ATEN.floor.default, self._call(_ATEN.mul.Tensor, whole, 1 / 16))
            lower = self._call(_ATEN.sub.Tensor, whole, self._call(_ATEN.mul.Tensor, upper, 16))
            numbers = self._call(_ATEN.cat.default, [lower, upper], 2)
            centred = self._call(_ATEN.sub.Tensor, numbers, 8)
            blocks = self._call(_ATEN.mul.Tensor, centred, scale)
            padded = scales.shape[1] * BLOCK
            rows = self._call(_ATEN.reshape.default, blocks, [moved[0], padded])
            if moved[1:].numel() != padded:
                rows = self._call(_ATEN.slice.Tensor, rows, 1, 0, moved[1:].numel())
            whole = self._call(_ATEN.reshape.default, rows, list(moved))
            if axis != 0:
                order = [*range(1, axis + 1), 0, *range(axis + 1, len(moved))]
                whole = self._call(_ATEN.permute.default, whole, order)
            self._put(name, whole)

    def put_scaled_channels(self, name: str, axis: int) -> None:
        """Makes a weight of integers of 8 bits by the operator that backends look for."""
        integers, scales = _bytes_of(self._weight(name), axis)
        flat = scales.flatten()
        operator = torch.ops.quantized_decomposed.dequantize_per_channel.default
        with self._in_place_of(name) as buffer:
            stored, scale = buffer("int8", integers), buffer("scale", flat)
            zero = buffer("zero", torch.zeros_like(flat, dtype=torch.int64))
            limits = (-127, 127, torch.int8)
            self._put(name, self._call(operator, stored, scale, zero, axis, *limits))

    def _weight(self, name: str) -> torch.Tensor:
        weight: torch.Tensor = self.program.state_dict[name]
        return weight.detach()

    @contextlib.contextmanager
    def _in_place_of(self, name: str) -> Iterator[Callable[[str, torch.Tensor], Node]]:
        """Inside the block nodes are added before all others; gives a function that adds a buffer,
        whose placeholder stands before that of the weight.
        """
        spec = next(one for one in self._specs if one.target == name)

        def buffer(what: str, value: torch.Tensor) -> Node:
            with self._graph.inserting_before(self._nodes[spec.arg.name]):
                node = self._graph.placeholder(f"b_{name.replace('.', '_')}_{what}")
            node.meta["val"] = self._mode.from_tensor(value, static_shapes=True)
            full, argument = f"{name}_{what}", TensorArgument(node.name)
            added = InputSpec(InputKind.BUFFER, argument, full, persistent=True)
            self._specs.insert(self._specs.index(spec), added)
            self._state[full] = value.contiguous()
            return node

        first = next(node for node in self._graph.nodes if node.op != "placeholder")
        with self._graph.inserting_before(first):
            yield buffer
        self._specs.remove(spec)

    def _put(self, name: str, made: Node) -> None:
        """Lets all read a node in the place of a weight, which goes."""
        spec = next(one for one in self._specs if one.target == name)
        old = self._nodes[spec.arg.name]
        old.replace_all_uses_with(made)
        self._graph.erase_node(old)
        del self._state[name]

    def round_activation(self, product: str, at: int, low: float, high: float) -> None:
        """Rounds an argument of a product to the integers between two bounds."""
        low, high = min(low, 0.0), max(high, 0.0)
        scale = (high - low) / (_HIGH - _LOW) or 1.0
        zero = _LOW - round(low / scale)
        node = self._nodes[product]
        source: Any = node.args[at]
        arguments = (scale, zero, _LOW, _HIGH, torch.int8)
        ops = torch.ops.quantized_decomposed
        with self._graph.inserting_before(node):
            rounded = self._call(ops.quantize_per_tensor.default, source, *arguments)
            again = self._call(ops.dequantize_per_tensor.default, rounded, *arguments)
        node.update_arg(at, again)

    def finished(self) -> torch.export.ExportedProgram:
        """The program as it was changed."""
        self._graph.lint()
        self._module.recompile()
        program = self.program
        signature = type(program.graph_signature)(self._specs, program.graph_signature.output_specs)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch copies its tree specs by a deprecated way
            made = program._update(self._module, signature, state_dict=self._state)
        made._guards_code = list(program._guards_code)
        return made

    def _call(self, operator: Any, *arguments: Any) -> Node:
        """A node that computes, with the fake tensor of its result."""
        node = self._graph.call_function(operator, arguments)
        given = torch.fx.map_arg(arguments, lambda one: one.meta["val"])
        with self._mode, _without_new_guards(self._mode):
            node.meta["val"] = operator(*given)
        return node


@contextlib.contextmanager
def _without_new_guards(mode: Any) -> Iterator[None]:
    """Inside the block nothing is decided about sizes: each further operator keeps its shape."""
    if mode.shape_env is None:
        yield
        return
    with mode.shape_env.suppress_guards():
        yield


def _axis_of_outputs(weight: Node, user: Node) -> int | None:
    """The axis with the outputs, where the user is a product that reads this node as its weights;
    None where it is something else.
    """
    if user.op != "call_function" or user.target not in _WEIGHTS:
        return None
    at, axis = _WEIGHTS[user.target]
    places = [number for number, value in enumerate(user.args) if value is weight]
    rank = weight.meta["val"].ndim
    is_matrix = user.target is not _ATEN.matmul.default or rank == 2
    return axis if places == [at] and is_matrix else None


def _measured(
    graph: Graph, calls: Sequence[Sequence[Any]]
) -> dict[tuple[str, int], tuple[float, float]]:
    """The least and the greatest number of each activation that a product reads, by the product and
    the place of the argument.
    """
    know_quantised_operators()
    module = graph.artifact.module(check_guards=False)
    meter = _Meter(module)
    names = [str(node.target) for node in module.graph.find_nodes(op="placeholder")]
    positions = {name: at for at, name in enumerate(graph.names.values())}
    with torch.no_grad():
        for inputs in calls:
            meter.run(*[inputs[positions[name]] for name in names])
    return meter.bounds


class _Meter(torch.fx.Interpreter):
    """Runs a graph, and notes between which bounds the activations of products are."""

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module)
        self.bounds: dict[tuple[str, int], tuple[float, float]] = {}

    def run_node(self, n: Node) -> Any:
        """The value of a node."""
        target: Any = n.target
        weights = n.args[_WEIGHTS[target][0]] if target in _WEIGHTS else None
        if isinstance(weights, Node) and weights.op == "get_attr":
            at = _WEIGHTS[target][0] - 1  # the activation stands before the weights
            value = self.env.get(n.args[at])  # type: ignore[arg-type]
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                self._note((n.name, at), value)
        return super().run_node(n)

    def _note(self, place: tuple[str, int], value: torch.Tensor) -> None:
        finite = value[value.isfinite()]
        if finite.numel():
            low, high = finite.min().item(), finite.max().item()
            known = self.bounds.get(place, (low, high))
            self.bounds[place] = min(known[0], low), max(known[1], high)
