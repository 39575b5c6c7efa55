"""Along which axes does a graph only broadcast its inputs? There a size of 1 gives what the full size
gives, if each element is repeated.

A mask was of shape (batch, words) in all calls. A later call has one row for all texts, (1, words). The
row is expanded before the graph gets it, so its values are alike along the batch: the mask is *stretched*
there. The model itself has a row. Both give the same as long as nothing but broadcasting looks at the
axis::

    hidden = 1 - mask               stretched along 0, as the mask is; the model has one row
    scores = x + hidden * -1e9      x is full along 0, and so is the result of both
    scores.softmax(1)               nothing is stretched any more
    mask.mean(0)                    here it matters how many rows there are: no broadcasting

A tensor is stretched along an axis until it meets one that is full there. All operators in between have to
work on each element by itself, or to move axes. What the Python of the model reads of sizes is no part of
a graph: :mod:`onlooker.graphs.one_plan.broadcast_axes` looks at that.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch.fx import Node

from ..torch_internals.operators import OpOverload
from .operators import CASTS, COPIES, draws, written_by

__all__ = ["Broadcasts"]

_aten = torch.ops.aten
#: operators on each element that torch does not mark as such
_OF_ELEMENTS = {
    _aten.__and__.Tensor,
    _aten.__or__.Tensor,
    _aten.__xor__.Tensor,
    _aten.complex.default,
    _aten.expand_as.default,
    _aten.floor_divide.default,
    _aten.masked_fill.Tensor,
    _aten.polar.default,
    _aten.rsub.Tensor,
    _aten.where.ScalarOther,
    _aten.where.ScalarSelf,
}
_SIZES = frozenset({_aten.sym_size.int, _aten.sym_numel.default})
_END = 2**62

Dims = frozenset[int]


class _LooksError(Exception):
    """Something but broadcasting looks at a stretched axis."""


class Broadcasts:
    """One graph, which is asked about its inputs."""

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        self._order = {node: place for place, node in enumerate(program.graph.nodes)}
        names = program.graph_signature.user_inputs
        nodes = {node.name: node for node in self._order if node.op == "placeholder"}
        # an int that became a number in the trace stands there as this number
        self._inputs = [nodes.get(name) if isinstance(name, str) else None for name in names]

    def is_all_of(self, stretched: Mapping[int, Collection[int]]) -> bool:
        """True where nothing but broadcasting looks at some axes of the inputs, which are given by their
        position: the dimensions of each.
        """
        dims: dict[Node, Dims] = {}
        left: list[tuple[int, Node]] = []
        for position, own in stretched.items():
            node = self._inputs[position]
            if node is None:
                return False
            dims[node] = frozenset(own)
            left += [(self._order[user], user) for user in node.users]
        heapq.heapify(left)
        try:
            while left:
                _, node = heapq.heappop(left)
                if node in dims:
                    continue
                dims[node] = _dims_of(node, dims)
                for user in node.users if dims[node] else ():
                    heapq.heappush(left, (self._order[user], user))
        except _LooksError:
            return False
        return True


def _dims_of(node: Node, dims: Mapping[Node, Dims]) -> Dims:
    """The axes along which the result of a node is stretched.

    :raises _LooksError: where the node looks at how many elements there are
    """
    if node.target in _SIZES:
        return frozenset()  # the graph has the full size; what Python reads is looked at elsewhere
    if not isinstance(node.target, OpOverload) or draws(node):
        raise _LooksError
    if any(dims.get(written) for written in written_by(node)):
        raise _LooksError
    if torch.Tag.pointwise in node.target.tags or node.target in _OF_ELEMENTS:
        return _of_elements(node, dims)
    rule = _RULES.get(node.target)
    if rule is None or not isinstance(node.args[0], Node):
        raise _LooksError
    return rule(node, dims)


def _of_elements(node: Node, dims: Mapping[Node, Dims]) -> Dims:
    """An operator on each element: the result is full where one of the arguments is."""
    rank = _rank(node)
    stretched: set[int] = set()
    full: set[int] = set()
    for other in node.all_input_nodes:
        value = other.meta.get("val")
        if not isinstance(value, torch.Tensor):
            continue
        own = dims.get(other, frozenset())
        first = rank - value.dim()
        stretched |= {first + dim for dim in own}
        sizes = enumerate(value.shape)
        full |= {first + dim for dim, size in sizes if dim not in own and not _is_number(size, 1)}
    return frozenset(stretched - full)


def _of_copy(node: Node, dims: Mapping[Node, Dims]) -> Dims:
    return _given(dims, node.args[0])


def _of_assertion(node: Node, dims: Mapping[Node, Dims]) -> Dims:
    """What asserts a dtype, but neither sizes nor strides."""
    if any(size is not None for size in node.args[1:3]):
        raise _LooksError
    return frozenset()


def _of_expand(node: Node, dims: Mapping[Node, Dims]) -> Dims:
    tensor, sizes = node.args[0], list(node.args[1])  # type: ignore[arg-type]
    first = _rank(node) - _rank(tensor)
    stays = (dim for dim in _given(dims, tensor) if sizes[first + dim] == -1)
    return frozenset(first + dim for dim in stays)


def _of_unsqueeze(node: Node, dims: Mapping[Node, Dims]) -> Dims:
    new = _dim(node.args[1], _rank(node))
    return frozenset(dim + (dim >= new) for dim in _given(dims, node.args[0]))


def _of_select(node: Node, dims: Mapping[Node, Dims]) -> Dims:
    gone = _dim(node.args[1], _rank(node.args[0]))
    own = _given(dims, node.args[0])
    if gone in own and node.args[2] not in (0, -1):
        raise _LooksError
    return frozenset(dim - (dim > gone) for dim in own if dim != gone)


def _of_slice(node: Node, dims: Mapping[Node, Dims]) -> Dims:
    given: list[Any] = [*node.args, *(0, None, None, 1)[len(node.args) - 1 :]]
    tensor, dim, start, end, step = given
    own = _given(dims, tensor)
    if _dim(dim, _rank(node)) in own:
        size = tensor.meta["val"].shape[_dim(dim, _rank(node))]
        is_end = end is None or (type(end) is int and end >= _END) or _is_same(end, size)
        if start not in (None, 0) or step != 1 or not is_end:
            raise _LooksError
    return own


def _of_permute(node: Node, dims: Mapping[Node, Dims]) -> Dims:
    # permute(0, 2, 1) takes axis 2 to place 1: what is asked of axis 2 is asked of the result's axis 1
    own, rank = _given(dims, node.args[0]), _rank(node)
    order = [_dim(dim, rank) for dim in node.args[1]]  # type: ignore[union-attr]
    places = [place for place, dim in enumerate(order) if dim in own]
    return frozenset(places)


def _of_transpose(node: Node, dims: Mapping[Node, Dims]) -> Dims:
    one, other = (_dim(dim, _rank(node)) for dim in node.args[1:3])
    swapped = {one: other, other: one}
    return frozenset(swapped.get(dim, dim) for dim in _given(dims, node.args[0]))


def _along_one(node: Node, dims: Mapping[Node, Dims]) -> Dims:
    """What goes along one axis, each row by itself: that axis has to be whole."""
    return _with_whole(node, dims, node.args[1])


def _of_linear(node: Node, dims: Mapping[Node, Dims]) -> Dims:
    if any(map(dims.get, node.all_input_nodes[1:])):
        raise _LooksError
    return _with_whole(node, dims, -1)


def _with_whole(node: Node, dims: Mapping[Node, Dims], dim: Any) -> Dims:
    own = _given(dims, node.args[0])
    if _dim(dim, _rank(node.args[0])) in own:
        raise _LooksError
    return own


def _of_embedding(node: Node, dims: Mapping[Node, Dims]) -> Dims:
    table, ids = node.args[:2]
    if _given(dims, table):
        raise _LooksError
    return _given(dims, ids)


_RULES: dict[Any, Callable[[Node, Mapping[Node, Dims]], Dims]] = {
    **dict.fromkeys(COPIES | CASTS, _of_copy),
    _aten._assert_tensor_metadata.default: _of_assertion,
    _aten.expand.default: _of_expand,
    _aten.unsqueeze.default: _of_unsqueeze,
    _aten.select.int: _of_select,
    _aten.slice.Tensor: _of_slice,
    _aten.permute.default: _of_permute,
    _aten.transpose.int: _of_transpose,
    _aten.embedding.default: _of_embedding,
    _aten.linear.default: _of_linear,
    **dict.fromkeys((_aten.softmax.int, _aten.log_softmax.int, _aten.cumsum.default), _along_one),
}


def _given(dims: Mapping[Node, Dims], node: Any) -> Dims:
    return dims.get(node, frozenset())


def _rank(node: Any) -> int:
    """The number of dimensions of the result of a node.

    :raises _LooksError: where that is no tensor
    """
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        raise _LooksError
    return value.dim()


def _dim(dim: Any, rank: int) -> int:
    return int(dim) % rank


def _is_number(size: Any, number: int) -> bool:
    """True for a number of Python; a symbol is not asked, since that would be a guard."""
    return type(size) is int and size == number


def _is_same(end: Any, size: Any) -> bool:
    """True for a node that is a size, or for the size itself."""
    value = end.meta.get("val") if isinstance(end, Node) else end
    if isinstance(value, torch.SymInt) and isinstance(size, torch.SymInt):
        return bool(value.node.expr == size.node.expr)
    return type(value) is int and type(size) is int and value == size
