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

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ...core.errors import ExportError
from ...core.precision import precision_named
from ...torch_internals.operators import know_quantised_operators
from ...trace.graph import Graph
from ...trace.torch_run import runner_of
from ..stand_ins import computed_tensor, is_stand_in
from .editing import PRODUCTS, Editing
from .layers import float_weights_of, weights_of_products

__all__ = ["INTEGERS", "reduced_graphs", "rounded_weight", "run_on_calls"]

#: the precisions that graphs of torch can be made in
INTEGERS = ("int8", "int4", "int8-static")
#: how many numbers of a row share a scale in int4
BLOCK = 32
_ATEN = torch.ops.aten
#: the least and the greatest integer of an activation
_LOW, _HIGH = -128, 127


def reduced_graphs(graphs: Sequence[Graph], precision: str | None, calibration: Any) -> list[Graph]:
    """The graphs of torch in a precision of :data:`INTEGERS`; as they are for None.

    :raises ExportError: ``torch-not-quantised`` for a graph without a product by weights
    """
    if precision is None:
        return list(graphs)
    return [_reduced(graph, precision, (calibration or {}).get(graph.name, ())) for graph in graphs]


def _reduced(graph: Graph, precision: str, calls: Sequence[Sequence[Any]]) -> Graph:
    kind = precision_named(precision)
    bounds = _measured(graph, calls) if kind.is_calibrated else {}
    editing = _Reducing(graph.artifact)
    weights = weights_of_products(graph.artifact)
    if not weights:
        raise ExportError(
            f"{graph.name} cannot have weights of {precision}: it has no product by a matrix of"
            " weights.",
            slug="torch-not-quantised",
        )
    left = float_weights_of(graph)
    for name, axis in weights.items():
        if name in left:
            continue
        if kind.is_calibrated:
            editing.put_scaled_channels(name, axis)
        elif kind.bits == 8 or editing.program.state_dict[name].ndim > 2:
            editing.put_bytes(name, axis)
        else:
            editing.put_half_bytes(name, axis)
    products = {user.name for name in left for user in editing.users_of(name)}
    for (product, at), (low, high) in bounds.items():
        if product in products:
            continue
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


def rounded_weight(matrix: torch.Tensor, axis: int, bits: int) -> torch.Tensor:
    """The floats of a weight after it was rounded to integers; ``axis`` is that of its outputs."""
    if bits == 8:
        integers, scales = _bytes_of(matrix, axis)
        return integers.to(matrix.dtype) * scales
    halves, scales = _half_bytes_of(matrix, axis)
    numbers = torch.cat([halves & 15, halves >> 4], 2).to(matrix.dtype) - 8
    moved = matrix.movedim(axis, 0)
    rows = (numbers * scales).flatten(1)[:, : moved[0].numel()]
    return rows.reshape(moved.shape).movedim(0, axis)


def _parts(
    matrix: torch.Tensor, function: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The integers and the scales of a matrix, each when it is written where this stands for a weight."""
    if not is_stand_in(matrix):
        return function(matrix)
    integers = computed_tensor(matrix, lambda weight: function(weight)[0])
    scales = computed_tensor(matrix, lambda weight: function(weight)[1])
    return integers, scales


def _scales(greatest: torch.Tensor, most: int) -> torch.Tensor:
    """The scale of each block, whose greatest number becomes ``most``; a block of zeros has 1."""
    return torch.where(greatest == 0, torch.ones_like(greatest), greatest / most)


class _Reducing(Editing):
    """A program whose weights become integers."""

    def put_bytes(self, name: str, axis: int) -> None:
        """Makes a weight of integers of 8 bits."""
        matrix = self.weight(name)
        integers, scales = _parts(matrix, partial(_bytes_of, axis=axis))
        with self.in_place_of(name) as buffer:
            stored, scale = buffer("int8", integers), buffer("scale", scales)
            floats = self.call(_ATEN.to.dtype, stored, matrix.dtype)
            self.put(name, self.call(_ATEN.mul.Tensor, floats, scale))

    def put_half_bytes(self, name: str, axis: int) -> None:
        """Makes a weight of integers of 4 bits."""
        matrix = self.weight(name)
        integers, scales = _parts(matrix, partial(_half_bytes_of, axis=axis))
        moved = matrix.movedim(axis, 0).shape
        with self.in_place_of(name) as buffer:
            stored, scale = buffer("int4", integers), buffer("scale", scales)
            # by floats, since not every backend shifts bits: 16 * upper + lower
            whole = self.call(_ATEN.to.dtype, stored, matrix.dtype)
            upper = self.call(_ATEN.floor.default, self.call(_ATEN.mul.Tensor, whole, 1 / 16))
            lower = self.call(_ATEN.sub.Tensor, whole, self.call(_ATEN.mul.Tensor, upper, 16))
            numbers = self.call(_ATEN.cat.default, [lower, upper], 2)
            centred = self.call(_ATEN.sub.Tensor, numbers, 8)
            blocks = self.call(_ATEN.mul.Tensor, centred, scale)
            padded = scales.shape[1] * BLOCK
            rows = self.call(_ATEN.reshape.default, blocks, [moved[0], padded])
            if moved[1:].numel() != padded:
                rows = self.call(_ATEN.slice.Tensor, rows, 1, 0, moved[1:].numel())
            whole = self.call(_ATEN.reshape.default, rows, list(moved))
            if axis != 0:
                order = [*range(1, axis + 1), 0, *range(axis + 1, len(moved))]
                whole = self.call(_ATEN.permute.default, whole, order)
            self.put(name, whole)

    def put_scaled_channels(self, name: str, axis: int) -> None:
        """Makes a weight of integers of 8 bits by the operator that backends look for."""
        integers, scales = _bytes_of(self.weight(name), axis)
        flat = scales.flatten()
        operator = torch.ops.quantized_decomposed.dequantize_per_channel.default
        with self.in_place_of(name) as buffer:
            stored, scale = buffer("int8", integers), buffer("scale", flat)
            zero = buffer("zero", torch.zeros_like(flat, dtype=torch.int64))
            limits = (-127, 127, torch.int8)
            self.put(name, self.call(operator, stored, scale, zero, axis, *limits))

    def round_activation(self, product: str, at: int, low: float, high: float) -> None:
        """Rounds an argument of a product to the integers between two bounds."""
        low, high = min(low, 0.0), max(high, 0.0)
        scale = (high - low) / (_HIGH - _LOW) or 1.0
        zero = _LOW - round(low / scale)
        node = self.nodes[product]
        source: Any = node.args[at]
        arguments = (scale, zero, _LOW, _HIGH, torch.int8)
        ops = torch.ops.quantized_decomposed
        with self.graph.inserting_before(node):
            rounded = self.call(ops.quantize_per_tensor.default, source, *arguments)
            again = self.call(ops.dequantize_per_tensor.default, rounded, *arguments)
        node.update_arg(at, again)


def _measured(
    graph: Graph, calls: Sequence[Sequence[Any]]
) -> dict[tuple[str, int], tuple[float, float]]:
    """The least and the greatest number of each activation that a product reads, by the product and
    the place of the argument.
    """
    know_quantised_operators()
    meter = _Meter(graph.artifact.module(check_guards=False))
    run_on_calls(meter, graph, calls)
    return meter.bounds


def run_on_calls(
    interpreter: torch.fx.Interpreter, graph: Graph, calls: Sequence[Sequence[Any]]
) -> None:
    """Runs a graph node by node on the inputs of some calls, which stand in the order of its plan."""
    nodes = interpreter.module.graph.find_nodes(op="placeholder")  # type: ignore[union-attr, operator]
    positions = {name: at for at, name in enumerate(graph.names.values())}
    order = [positions[str(node.target)] for node in nodes]
    with torch.no_grad():
        for inputs in calls:
            interpreter.run(*[inputs[position] for position in order])


class _Meter(torch.fx.Interpreter):
    """Runs a graph, and notes between which bounds the activations of products are."""

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module)
        self.bounds: dict[tuple[str, int], tuple[float, float]] = {}

    def run_node(self, n: Node) -> Any:
        """The value of a node."""
        target: Any = n.target
        weights = n.args[PRODUCTS[target][0]] if target in PRODUCTS else None
        if isinstance(weights, Node) and weights.op == "get_attr":
            at = PRODUCTS[target][0] - 1  # the activation stands before the weights
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
