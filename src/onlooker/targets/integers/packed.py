"""Finds the weights that a checkpoint has as integers already, in the graph that unpacks them.

A layer of such a checkpoint keeps several integers in each number of 32 or 8 bits, and computes its
matrix in every call: shifts and masks, minus the zero points, times the scales. Formats differ in how they
pack, and all of them end in one product of integers by scales::

    int32[8, 64] -> shifts, masks -> int[64, 64] - zero points -> times float[64, 64] -> matmul(x, matrix)

That product is found in the graph, and both of its factors are computed, whatever comes before them: the
left one has whole numbers, the right one has the same number in a whole block of inputs. So the matrix is
integers of 4 or 8 bits with a scale, and maybe a zero point, for each block, and one operator says so::

    dequantize_per_channel_group(int8[64, 64], float[64, 2], int[64, 2], ...) -> permute -> matmul(x, matrix)

Where inputs of one block do not stand side by side (the order of activations of GPTQ), they are brought
together, and the inputs of the product with them. A matrix that cannot be said so bit by bit stays.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.export.graph_signature import InputKind, InputSpec
from torch.fx import Node

from ...proofs.operators import MOVES
from ...torch_internals.graph_modules import nodes_reached, placeholders_of
from ...torch_internals.operators import OpOverload, know_quantised_operators
from .editing import PRODUCTS, Editing, axis_of_outputs

__all__ = ["MOST_OF_BITS", "Packed", "with_packed_weights", "with_unpacked_bits"]

_ATEN = torch.ops.aten
#: how the names of operators on bits begin
_OF_BITS = ("bitwise_", "__and__", "__or__", "__xor__", "__lshift__", "__rshift__")
_ASSERTION = _ATEN._assert_tensor_metadata.default
#: the operators that move numbers, all or some of them, or give them another dtype, and change none
_MOVING = MOVES | {"index", "index_select", "slice"}
#: the products of a tensor by a matrix
_BY_MATRIX = (
    _ATEN.linear.default,
    _ATEN.matmul.default,
    _ATEN.mm.default,
    _ATEN.addmm.default,
)
#: the least and the greatest integer of as many bits
MOST_OF_BITS = {4: (-8, 7), 8: (-128, 127)}
#: blocks of fewer inputs have more scales than they save
_SMALLEST_BLOCK = 8


@dataclass(frozen=True, slots=True)
class Packed:
    """A matrix ``(outputs, inputs)`` as ``integers`` of some ``bits``, in int8, with ``scales`` of the
    dtype that they are multiplied in and ``zeros`` in int32, both ``(outputs, blocks)``; None for zeros of 0.

    ``order`` has the place of each input in the inputs of the product, where they do not stand as they
    come.
    """

    integers: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    bits: int
    order: torch.Tensor | None = None

    @property
    def block(self) -> int:
        """How many inputs share a scale."""
        return self.integers.shape[1] // self.scales.shape[1]

    def matrix(self) -> torch.Tensor:
        """The matrix, in the dtype of the scales."""
        blocks = self.integers.reshape(len(self.integers), -1, self.block).int()
        whole = blocks if self.zeros is None else blocks - self.zeros[:, :, None]
        floats: torch.Tensor = whole.to(self.scales.dtype) * self.scales[:, :, None]
        return floats.flatten(1)


def with_packed_weights(
    program: torch.export.ExportedProgram, *, mixed: bool = True
) -> torch.export.ExportedProgram:
    """The program in which products read integers by one operator, wherever the matrix of one is made
    of integers with scales; itself where none is.

    With ``mixed=False`` matrices stay whose scales have another dtype than the product, for runtimes that
    do not round the matrix to that dtype.
    """
    weights = _Weights(program)
    found: dict[str, tuple[Packed, InputSpec]] = {}
    for node in program.graph.nodes:
        matrix = weights.matrix_of(node)
        if matrix is not None and matrix.name not in found:
            whole = weights.packed(matrix, _places_in(node)[1])
            if whole is not None and (mixed or whole[0].scales.dtype == _dtype_of(matrix)):
                found[matrix.name] = whole
    if not found:
        return program
    know_quantised_operators()
    editing = _Packing(program)
    for name, (packed, spec) in found.items():
        editing.put_packed(editing.nodes[name], packed, spec)
    editing.drop_unread(weights.names)
    return editing.finished()


def with_unpacked_bits(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The program in which all that is made of weights alone, bit by bit, is a weight itself, for runtimes
    that lack operators on bits; itself where nothing is.
    """
    weights = _Weights(program)
    found = {
        node.name: weights.value_of(node) for node in program.graph.nodes if weights.ends(node)
    }
    if not found:
        return program
    editing = _Packing(program)
    for name, value in found.items():
        if value is not None:
            editing.put_value(editing.nodes[name], *value)
    editing.drop_unread(weights.names)
    return editing.finished()


class _Weights:
    """The nodes of a program that are made of weights alone, and what they hold."""

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        self._values: dict[Node, tuple[InputSpec, torch.Tensor]] = {}
        placeholders = placeholders_of(program)
        changed = set(program.graph_signature.buffers_to_mutate.values())
        tensors = {**program.constants, **program.state_dict}
        for spec in program.graph_signature.input_specs:
            value = tensors.get(str(spec.target))
            is_input = spec.kind is InputKind.USER_INPUT or spec.target in changed
            if not is_input and isinstance(value, torch.Tensor):
                self._values[placeholders[spec.arg.name]] = spec, value.detach()
        self._nodes = _made_of(program.graph.nodes, self._values)

    @property
    def names(self) -> set[str]:
        """The names of the nodes, inputs among them."""
        return {node.name for node in self._nodes}

    def matrix_of(self, product: Node) -> Node | None:
        """The matrix of a product that is made of weights alone, integers among them, and that products
        alone read; None where there is none.
        """
        if product.op != "call_function" or product.target not in _BY_MATRIX:
            return None
        at, _ = _places_in(product)
        rows, matrix = product.args[at - 1 : at + 1]
        if not isinstance(matrix, Node) or matrix not in self._nodes or matrix in self._values:
            return None
        if not isinstance(rows, Node) or rows.meta["val"].ndim < 2:
            return None
        axes = {axis_of_outputs(matrix, user) for user in _readers_of(matrix)}
        return matrix if len(axes) == 1 and None not in axes and _is_plain(matrix) else None

    def packed(self, matrix: Node, axis: int) -> tuple[Packed, InputSpec] | None:
        """A matrix as integers, ``axis`` being that of its outputs, and the weight that has most of
        them; None where it cannot be made of these again bit by bit.
        """
        integers = [self._values[node] for node in self._behind(matrix) if node in self._values]
        integers = [one for one in integers if not one[1].is_floating_point()]
        values = self._computed(matrix) if integers else None
        if values is None:
            return None
        for whole, scales in self._factors(matrix, values):
            packed = _packed(whole, scales, values[matrix], axis)
            if packed is not None:
                return packed, max(integers, key=lambda one: one[1].nbytes)[0]
        return None

    def ends(self, node: Node) -> bool:
        """True for what is made of weights by operators on bits, and read by something else."""
        if node not in self._nodes or all(user in self._nodes for user in node.users):
            return False
        return any(_is_of_bits(one) for one in self._behind(node))

    def value_of(self, node: Node) -> tuple[torch.Tensor, InputSpec] | None:
        """The value of a node, and the weight that has most of it; None where a weight is written to."""
        values = self._computed(node)
        if values is None:
            return None
        known = [self._values[one] for one in self._behind(node) if one in self._values]
        return values[node], max(known, key=lambda one: one[1].nbytes)[0]

    def _behind(self, node: Node) -> set[Node]:
        """The node, what it is made of, and what writes to that."""
        return _with_writers([node], self._nodes)

    def _computed(self, node: Node) -> dict[Node, Any] | None:
        """The value of a node, and of all that it is made of; None where a weight is written to."""
        behind = self._behind(node)
        known = {one: self._values[one][1] for one in behind if one in self._values}
        if any(map(_writes, behind)):
            known = {one: value.clone() for one, value in known.items()}
        values: dict[Node, Any] = {}
        before = [value._version for value in known.values()]
        with torch.no_grad():
            for one in node.graph.nodes:
                if one in behind:
                    values[one] = known[one] if one in known else _run(one, values)
        is_same = before == [value._version for value in known.values()]
        return values if is_same else None

    def _factors(
        self, matrix: Node, values: dict[Node, Any]
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Whole numbers and scales, each as large as the matrix and in the order of its numbers;
        without a product the matrix and ones.
        """
        moves = []
        node = matrix
        while _is_move(node):
            moves.append(node)
            node = node.all_input_nodes[0]
        if node.target is not _ATEN.mul.Tensor:
            yield values[matrix], torch.ones_like(values[matrix])
            return
        value = values[node]
        sides = [values[one] if isinstance(one, Node) else torch.tensor(one) for one in node.args]
        for whole, scales in (sides, sides[::-1]):
            if _is_whole(whole):
                factors = [one.to(value.dtype).expand(value.shape) for one in (whole, scales)]
                for move in reversed(moves):
                    factors = [_moved(one, move, values) for one in factors]
                yield factors[0], factors[1]


def _made_of(nodes: Iterable[Node], weights: Iterable[Node]) -> set[Node]:
    """The nodes that are made of weights and numbers alone.

    A weight that a call writes to, a cache, is none: nor is what is made of it.
    """
    nodes = list(nodes)
    excluded: set[Node] = set()
    while True:
        found = set(weights) - excluded
        written: set[Node] = set()
        for node in nodes:
            if node.op != "call_function" or not isinstance(node.target, OpOverload):
                continue
            is_made = all(one in found for one in node.all_input_nodes)
            is_random = torch.Tag.nondeterministic_seeded in node.target.tags
            is_tensor = isinstance(node.meta.get("val"), torch.Tensor)
            if is_made and not is_random and (is_tensor or node.target is _ASSERTION):
                found.add(node)
            elif _writes(node):
                written |= nodes_reached(_aliased(node, writes=True), _aliased) - excluded
        if not written & found:
            return found
        excluded |= written
        weights = [one for one in weights if one not in excluded]
        nodes = [one for one in nodes if one not in excluded]


def _sources(nodes: Iterable[Node]) -> set[Node]:
    """The nodes, and all that they are made of."""
    return nodes_reached(nodes, lambda node: node.all_input_nodes)


def _with_writers(nodes: Iterable[Node], among: Iterable[Node]) -> set[Node]:
    """The nodes, all that they are made of, and all that writes to a part of that, ``among`` some."""
    found = _sources(nodes)
    writers = {one: _sources([one]) for one in among if _writes(one)}
    while True:
        made = {one for one in found if one.op != "placeholder"}
        more = [one for one in writers if one not in found and made & writers[one]]
        if not more:
            return found
        found = found.union(*(writers[one] for one in more))


def _aliased(node: Node, *, writes: bool = False) -> list[Node]:
    """The arguments whose memory the result of an operator may share, or that it writes to."""
    if not isinstance(node.target, OpOverload):
        return []
    arguments = node.target._schema.arguments
    given = {
        one.name: value for one, value in zip(arguments, node.args, strict=False)
    } | node.kwargs
    return [
        value
        for one in arguments
        if one.alias_info is not None and (one.alias_info.is_write or not writes)
        for value in [given.get(one.name)]
        if isinstance(value, Node)
    ]


def _writes(node: Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable


def _is_of_bits(node: Node) -> bool:
    name = node.target.__name__ if isinstance(node.target, OpOverload) else ""
    return name.startswith(_OF_BITS)


def _places_in(product: Node) -> tuple[int, int]:
    """The place of the matrix in the arguments of a product, and the axis of its outputs."""
    operator: Any = product.target
    return PRODUCTS[operator]


def _readers_of(matrix: Node) -> list[Node]:
    """The nodes that read a matrix, without assertions of its dtype."""
    return [user for user in matrix.users if user.target is not _ASSERTION]


def _dtype_of(node: Node) -> Any:
    return node.meta["val"].dtype


def _is_plain(matrix: Node) -> bool:
    value = matrix.meta.get("val")
    return isinstance(value, torch.Tensor) and value.ndim == 2 and value.is_floating_point()


def _is_move(node: Node) -> bool:
    """True for an operator that moves the numbers of its first argument, a float, to other places."""
    if (
        not isinstance(node.target, OpOverload)
        or not node.args
        or not isinstance(node.args[0], Node)
    ):
        return False
    name = node.target._schema.name.removeprefix("aten::")
    value = node.args[0].meta.get("val")
    is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
    return name in _MOVING and is_float and node.target.namespace == "aten"


def _is_whole(value: torch.Tensor) -> bool:
    """True for whole numbers of at most 8 bits."""
    if not value.is_floating_point():
        return True
    return bool((value == value.round()).all() and (value.abs() <= 512).all())


def _moved(value: torch.Tensor, move: Node, values: dict[Node, Any]) -> torch.Tensor:
    """A tensor in the place of the one that an operator moves, in its own dtype."""
    operator: Any = move.target
    if operator._schema.name in ("aten::to", "aten::_to_copy"):
        return value
    if operator in (_ATEN.view.default, _ATEN._unsafe_view.default):
        return value.reshape(values[move].shape)  # it may stand in memory in another way
    moved: torch.Tensor = _run(move, {**values, move.all_input_nodes[0]: value})
    return moved


def _run(node: Node, values: dict[Node, Any]) -> Any:
    operator: Any = node.target
    args = torch.fx.map_arg(node.args, values.__getitem__)
    kwargs = torch.fx.map_arg(node.kwargs, values.__getitem__)
    return operator(*args, **kwargs)


def _packed(
    integers: torch.Tensor, scales: torch.Tensor, matrix: torch.Tensor, axis: int
) -> Packed | None:
    """A matrix as integers with scales, ``axis`` being that of its outputs; None where it cannot be
    made of these again bit by bit.
    """
    if not _is_whole(integers) or integers.shape != matrix.shape or not matrix.numel():
        return None
    integers, scales, matrix = (one.movedim(axis, 0) for one in (integers, scales, matrix))
    for order in _orders(scales):
        moved = (integers, scales) if order is None else (integers[:, order], scales[:, order])
        block = _block_of(moved[1])
        if block < _SMALLEST_BLOCK:
            continue
        packed = _of_blocks(moved[0].float(), moved[1][:, ::block].contiguous(), order)
        wanted = matrix if order is None else matrix[:, order]
        if packed is not None and torch.equal(packed.matrix().to(matrix.dtype), wanted):
            return packed
    return None


def _orders(scales: torch.Tensor) -> Iterator[torch.Tensor | None]:
    """The orders of inputs in which those of a block may stand side by side: as they come, and sorted
    by their scales.
    """
    yield None
    _, kinds = torch.unique(scales, dim=1, return_inverse=True)
    yield torch.argsort(kinds, stable=True)


def _block_of(scales: torch.Tensor) -> int:
    """The most inputs in a row that have the same scales, where all blocks are of that size."""
    size = scales.shape[1]
    changes = (scales[:, 1:] != scales[:, :-1]).any(0).nonzero().flatten() + 1
    block = size
    for place in changes.tolist():
        block = math.gcd(block, place)
    return block


def _of_blocks(
    integers: torch.Tensor, scales: torch.Tensor, order: torch.Tensor | None
) -> Packed | None:
    """The integers of blocks in as few bits as hold them, with a zero point where that makes them
    fewer.
    """
    blocks = integers.reshape(*scales.shape, -1)
    least, most = blocks.amin(2), blocks.amax(2)
    for bits, (low, high) in MOST_OF_BITS.items():
        zeros = torch.zeros_like(least)
        if not ((least >= low) & (most <= high)).all():
            zeros = (low - least).clamp(low, high)
        moved = blocks + zeros[:, :, None]
        if ((moved >= low) & (moved <= high)).all():
            has_zeros = bool(zeros.any())
            return Packed(
                moved.flatten(1).to(torch.int8),
                scales,
                zeros.to(torch.int32) if has_zeros else None,
                bits,
                order,
            )
    return None


class _Packing(Editing):
    """A program whose products read integers by one operator."""

    def put_packed(self, matrix: Node, packed: Packed, spec: InputSpec) -> None:
        """Lets the products that read a matrix read integers in its place."""
        products = _readers_of(matrix)
        _, axis = _places_in(products[0])
        dtype = _dtype_of(matrix)
        stored = {"integers": packed.integers, "scales": packed.scales, "zeros": packed.zeros}
        nodes = [
            None if value is None else self._added(what, value, spec)
            for what, value in stored.items()
        ]
        operator = torch.ops.quantized_decomposed.dequantize_per_channel_group.default
        limits = MOST_OF_BITS[packed.bits]
        with self.graph.inserting_before(products[0]):
            given = packed.scales.dtype
            made = self.call(operator, *nodes, *limits, torch.int8, packed.block, given)
            if given != dtype:
                made = self.call(_ATEN.to.dtype, made, dtype)
            if axis == 1:
                made = self.call(_ATEN.permute.default, made, [1, 0])
        matrix.replace_all_uses_with(made)
        if packed.order is None:
            return
        order = self._added("order", packed.order, spec)
        for product in products:
            at = _places_in(product)[0] - 1
            with self.graph.inserting_before(product):
                rows = self.call(_ATEN.index_select.default, product.args[at], -1, order)
            product.update_arg(at, rows)

    def _added(self, what: str, value: torch.Tensor, spec: InputSpec) -> Node:
        taken = {one.target for one in self.specs}
        names = (f"{spec.target}_{what}{number or ''}" for number in itertools.count())
        return self.add_buffer(next(name for name in names if name not in taken), value, spec)

    def put_value(self, node: Node, value: torch.Tensor, spec: InputSpec) -> None:
        """Lets all read a value in the place of the operators that make it of weights."""
        node.replace_all_uses_with(self._added("value", value, spec))

    def drop_unread(self, names: set[str]) -> None:
        """Takes out what is made of weights alone and read by nothing else, and weights that nothing
        reads any more.
        """
        made = [node for node in self.graph.nodes if node.name in names]
        read = [node for node in made if any(user.name not in names for user in node.users)]
        kept = _with_writers(read, made)
        was_read = {node.name for node in self.program.graph.nodes if node.users}
        for node in reversed(made):
            if node not in kept and node.op != "placeholder":
                self.graph.erase_node(node)
        for spec in list(self.specs):
            node = self.nodes.get(spec.arg.name)
            if node is not None and node in made and not node.users and node.name in was_read:
                self.drop(spec)
