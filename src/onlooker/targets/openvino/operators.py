"""Operators of a graph as those that the front end of OpenVINO knows.

Why: the front end knows a size as a scalar, and of the operators of Python on such only ``+``,
``-``, ``*`` and ``//``; what stands in the table does the same to scalars. It joins no tensor of
shape ``(0,)`` with tensors of other ranks, and lacks some operators that torch takes apart nowhere.

Upstream: https://github.com/openvinotoolkit/openvino/blob/master/src/frontends/pytorch/src/op_table.cpp,
where ``<built-in function add>`` is such a name. A line may go when its operator stands there.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from ...torch_internals.graph_modules import add_up_sums, replace_for_others
from ...torch_internals.operators import composed, sym_sqrt
from ...torch_internals.sizes import statically_known_true
from ...torch_internals.tracing import decomp
from ..fixed_ranks import squeezed_axes
from ..taken_apart import Sometimes
from .complex_numbers import of_complex_numbers
from .conversions import RESULTS

__all__ = ["taken_apart", "use_known_operators"]

_aten = torch.ops.aten
_SAME: dict[Any, Any] = {
    operator.mod: _aten.remainder.Scalar,
    operator.truediv: _aten.div.Tensor,
    operator.pow: _aten.pow.Tensor_Tensor,
    operator.eq: _aten.eq.Scalar,
    operator.ne: _aten.ne.Scalar,
    operator.lt: _aten.lt.Scalar,
    operator.le: _aten.le.Scalar,
    operator.gt: _aten.gt.Scalar,
    operator.ge: _aten.ge.Scalar,
    operator.and_: _aten.logical_and.default,
    operator.or_: _aten.logical_or.default,
    torch.sym_not: _aten.logical_not.default,
    torch.sym_ite: _aten.where.self,
    _aten._is_all_true.default: _aten.all.default,
    _aten._is_any_true.default: _aten.any.default,
    torch.sym_max: _aten.maximum.default,
    torch.sym_min: _aten.minimum.default,
    math.ceil: _aten.ceil.default,
    math.floor: _aten.floor.default,
    sym_sqrt: _aten.sqrt.default,
}
#: operators whose results may be beyond the numbers of a dtype
_GO_ROUND = (
    _aten.abs.default,
    _aten.add.Tensor,
    _aten.add.Scalar,
    _aten.sub.Tensor,
    _aten.mul.Tensor,
    _aten.mul.Scalar,
    _aten.neg.default,
    _aten.rsub.Scalar,
    _aten.pow.Tensor_Scalar,
)
_SQUEEZES = (_aten.squeeze.default, _aten.squeeze.dim, _aten.squeeze.dims)
#: by each operator that orders elements the one that keeps the order of equal ones
_IN_ORDER: dict[Any, Any] = {
    _aten.sort.default: _aten.sort.stable,
    _aten.argsort.default: _aten.argsort.stable,
}
#: those that give an int where the operator of torch gives what it was given, and the other way round
_TO = {torch.sym_float: torch.float64, torch.sym_int: torch.int64, math.trunc: torch.int64}


def _same() -> dict[Any, Any]:
    """The table, with the operators of transformers once it has defined them."""
    if not hasattr(torch.ops.transformers, "grouped_mm_fallback"):
        return _SAME
    grouped = torch.ops.transformers.grouped_mm_fallback.default
    return {**_SAME, grouped: _aten._grouped_mm.default}


def use_known_operators(module: GraphModule) -> None:
    """Replaces the operators in the graph of a module; what it computes stays the same."""
    same = _same()
    add_up_sums(module.graph)
    for node in list(module.graph.nodes):
        if node.op != "call_function":
            continue
        if node.target in same:
            node.target = same[node.target]
            if node.target in (_aten.ceil.default, _aten.floor.default):
                _convert_after(module.graph, node)
        elif node.target in _TO:
            node.kwargs = {"dtype": _TO[node.target]}
            node.target = _aten._to_copy.default
        elif node.target is _aten.cat.default:
            _leave_out_nothing(node)
        elif node.target is _aten.clone.default:
            _leave_out_copy(module.graph, node)
        elif node.target in _SQUEEZES:
            _squeeze_ones(module.graph, node)
        elif node.target in (_aten.index.Tensor, _aten.index_put.default):
            _count_from_the_front(module.graph, node)
        elif node.target in _IN_ORDER:
            _keep_order(node)
        elif node.target is _aten.scatter_reduce.two:
            node.args, node.kwargs = (*node.args, node.kwargs.get("include_self", True)), {}
        elif node.target is _aten.copy_.default:
            _take_the_source(node)
        elif node.target in RESULTS and not _is_projected(node):
            _give_each_result(module.graph, node)


def _convert_after(graph: Graph, node: Node) -> None:
    """Makes an int of a result that is a float."""
    with graph.inserting_after(node):
        number = graph.call_function(_aten._to_copy.default, (node,), {"dtype": torch.int64})
    number.meta = dict(node.meta)
    replace_for_others(node, number)


def _leave_out_nothing(node: Node) -> None:
    """Leaves the tensors of shape ``(0,)`` out of those that are joined to one of another rank."""
    tensors: Any = node.args[0]
    if node.meta["val"].dim() > 1:
        kept = [tensor for tensor in tensors if tensor.meta["val"].dim() > 1]
        node.update_arg(0, kept)


def _squeeze_ones(graph: Graph, node: Node) -> None:
    """Squeezes the axes whose size is 1 in the trace: the front end takes one for 1 that is not.

    A graph with another size of 1 is not run (:mod:`onlooker.targets.fixed_ranks`).
    """
    value: Any = node.args[0]
    axes, _ = squeezed_axes(node)
    if axes:
        node.target, node.args = _aten.squeeze.dims, (value, axes)
    else:
        node.target, node.args = _aten.clone.default, (value,)
        _leave_out_copy(graph, node)


def _leave_out_copy(graph: Graph, node: Node) -> None:
    """Gives a value for its copy, which the front end takes for the same; an input stays one.

    A graph that gave both would have one result too few.
    """
    value: Any = node.args[0]
    if value.op != "placeholder":
        node.replace_all_uses_with(value)
        graph.erase_node(node)


def _is_projected(node: Node) -> bool:
    """True for an LSTM with projections, which OpenVINO lacks: its states differ in their sizes."""
    states: Any = node.args[1]
    return (
        isinstance(states, Sequence) and len({state.meta["val"].shape[-1] for state in states}) > 1
    )


def _give_each_result(graph: Graph, node: Node) -> None:
    """Each result of a recurrent layer as an operator of its own."""
    for item in list(node.users):
        with graph.inserting_before(item):
            position: Any = item.args[1]
            result = graph.call_function(RESULTS[node.target][position], node.args, node.kwargs)
        result.meta = dict(item.meta)
        item.replace_all_uses_with(result)
        graph.erase_node(item)
    graph.erase_node(node)


def _count_from_the_front(graph: Graph, node: Node) -> None:
    """Adds the size of an axis to the indices below 0 where several axes have indices: the front end
    makes one number of them.
    """
    value: Any = node.args[0]
    indices: Any = node.args[1]
    if sum(one is not None for one in indices) < 2:
        return
    shape = value.meta["val"].shape
    counted = [
        _counted(graph, node, value, axis, shape[axis], one) if _is_computed(one) else one
        for axis, one in enumerate(indices)
    ]
    node.update_arg(1, counted)


def _is_computed(index: Any) -> bool:
    """True for indices that may be below 0."""
    if index is None or index.meta["val"].dtype not in (torch.int32, torch.int64):
        return False
    return index.target not in (_aten.arange.default, _aten.arange.start_step)


def _counted(graph: Graph, node: Node, value: Node, axis: int, size: Any, index: Node) -> Node:
    with graph.inserting_before(node):
        if not isinstance(size, int):
            size = graph.call_function(_aten.sym_size.int, (value, axis))
            size.meta["val"] = value.meta["val"].shape[axis]
        is_low = graph.call_function(_aten.lt.Scalar, (index, 0))
        moved = graph.call_function(_aten.add.Tensor, (index, size))
        chosen = graph.call_function(_aten.where.self, (is_low, moved, index))
    is_low.meta["val"] = torch.empty_like(index.meta["val"], dtype=torch.bool)
    moved.meta["val"] = chosen.meta["val"] = index.meta["val"]
    return chosen


def _keep_order(node: Node) -> None:
    """Lets equal elements stay in their order: torch says nothing of it, and trials take no third one."""
    value, *options = node.args
    given = dict(zip(("dim", "descending"), options, strict=False))
    node.target, node.args = _IN_ORDER[node.target], (value,)
    node.kwargs = {"stable": True, **given, **node.kwargs}


def _take_the_source(node: Node) -> None:
    """Makes a write to an input a copy of its source, which the input holds afterwards."""
    target, source = node.args[:2]
    node.meta = dict(target.meta)  # type: ignore[union-attr]
    node.target, node.args = _aten._to_copy.default, (source,)
    node.kwargs = {"dtype": node.meta["val"].dtype}


def _histogram(values: torch.Tensor, bins: int = 100, low: int = 0, high: int = 0) -> Any:
    """``histc`` between two numbers: how many values lie in each of the parts of equal width."""
    if low == high:
        return NotImplemented
    flat = values.reshape(-1).to(torch.float32)
    part = torch.floor((flat - low) * (bins / (high - low))).clamp(max=bins - 1)
    is_inside = (flat >= low) & (flat <= high)
    numbers = torch.arange(bins, device=values.device)
    return ((part[:, None] == numbers) & is_inside[:, None]).sum(0).to(values.dtype)


def _zeros(size: Sequence[Any], order: Sequence[int], **options: Any) -> torch.Tensor:
    """``empty_permuted``: what is there does not matter, nor how it lies in memory."""
    return torch.zeros(size, dtype=options.get("dtype"), device=options.get("device"))


def _truncated(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x < 0, x.ceil(), x.floor()) if x.dtype.is_floating_point else x


def _rounded(x: torch.Tensor, *, decimals: int) -> torch.Tensor:
    return (x * 10.0**decimals).round() / 10.0**decimals


def _plus_product(
    x: torch.Tensor, matrix: torch.Tensor, vector: torch.Tensor, *, beta: Any = 1, alpha: Any = 1
) -> Any:
    """``addmv``."""
    return x * beta + matrix.mv(vector) * alpha


def _difference(x: torch.Tensor, y: Any, alpha: Any = 1) -> Any:
    return x - y * alpha


def _shifted_left(x: torch.Tensor, bits: int) -> Any:
    return x * 2**bits


def _shifted_right(x: torch.Tensor, bits: int) -> Any:
    return torch.div(x, 2**bits, rounding_mode="floor")


def _spread(
    x: torch.Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> Any:
    """``var`` with a correction that is neither 0 nor 1."""
    if correction in (None, 0, 1):
        return NotImplemented
    dims = list(range(x.dim())) if dim is None else dim
    count = math.prod(x.shape[one] for one in dims)
    divisor = torch.sym_max(count - correction, 0)  # type: ignore[no-untyped-call]
    from_mean = x - x.mean(dims, keepdim=True)
    return (from_mean * from_mean).sum(dims, keepdim=keepdim) / divisor


def _spread_root(x: torch.Tensor, dim: Any = None, **options: Any) -> Any:
    """``std``, as :func:`_spread`."""
    spread = _spread(x, dim, **options)
    return spread if spread is NotImplemented else spread.sqrt()


def _quotient(x: torch.Tensor, y: Any, *, rounding_mode: str | None) -> Any:
    """``div`` of ints that is rounded towards 0."""
    if rounding_mode != "trunc" or not isinstance(y, (torch.Tensor, int)):
        return NotImplemented
    if torch.result_type(x, y).is_floating_point:
        return _truncated(x / y)
    y = y if isinstance(y, torch.Tensor) else torch.full_like(x, y)
    return torch.div(x.abs(), y.abs(), rounding_mode="floor") * (x.sign() * y.sign())


def _left_alone(*_: Any, **__: Any) -> Any:
    return NotImplemented


def _wrapped(operator: Any, otherwise: Callable[..., Any]) -> Any:
    """The operator, whose results of 8 bits go round: OpenVINO gives 255 for 250 + 10, and torch 4.
    Tensors of other dtypes go to ``otherwise``.
    """

    def computed(x: Any, *args: Any, **options: Any) -> Any:
        dtype = torch.result_type(x, args[0]) if args else x.dtype
        if dtype not in (torch.uint8, torch.int8):
            return otherwise(x, *args, **options)
        wide = [one.to(torch.int32) if isinstance(one, torch.Tensor) else one for one in (x, *args)]
        low = torch.iinfo(dtype).min
        return ((operator(*wide, **options) - low) % 256 + low).to(dtype)

    return computed


def _diagonal(x: torch.Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> torch.Tensor:
    rows = x.movedim((dim1, dim2), (-2, -1))
    down, right = max(-offset, 0), max(offset, 0)
    count = torch.sym_min(rows.shape[-2] - down, rows.shape[-1] - right)  # type: ignore[no-untyped-call]
    places = torch.arange(count, device=x.device)
    return rows[..., places + down, places + right]


def _norm(
    x: torch.Tensor, order: Any = 2, dim: Any = None, keepdim: bool = False, **dtype: Any
) -> Any:
    """``linalg_vector_norm`` of a whole tensor"""
    if dim is not None:
        return NotImplemented
    return _aten.linalg_vector_norm.default(x, order, list(range(x.dim())), keepdim, **dtype)


def _trilinear(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, *dims: Any, unroll_dim: int = 1
) -> Any:
    """The product of ``Bilinear``: each tensor gets the axes that it lacks, and some are summed."""
    *added, summed = dims[:4]
    product: Any = 1
    for factor, axes in zip((a, b, c), added, strict=True):
        for axis in axes:
            factor = factor.unsqueeze(axis)
        product = factor * product
    return product.sum(summed)


def _windows(x: torch.Tensor, dim: int, size: int, step: int) -> Any:
    """``unfold`` of an axis that is counted from the end"""
    return NotImplemented if dim >= 0 else _aten.unfold.default(x, dim + x.dim(), size, step)


def _rows_taken(x: torch.Tensor, dim: int, index: torch.Tensor, **options: Any) -> Any:
    """``gather`` by an index with fewer rows in other axes than there are, which OpenVINO refuses; a slice
    before it is optimised away by ``EliminateSliceBeforeGatherElements``.
    """
    taken = x
    for axis, size in enumerate(index.shape):
        if axis != dim % x.dim() and not statically_known_true(size == x.shape[axis]):
            taken = taken.index_select(axis, torch.arange(size, device=x.device))
    return NotImplemented if taken is x else _aten.gather.default(taken, dim, index, **options)


def _places_written(
    x: torch.Tensor, indices: Sequence[Any], values: torch.Tensor, accumulate: bool = False
) -> Any:
    """``index_put`` where an axis without an index stands before an axis with one, as ``x[:, i] = y``."""
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    first, n_axes = axes[0], len(axes)
    given = [indices[axis] for axis in axes]
    if axes[-1] < n_axes or any(one.dtype in (torch.bool, torch.uint8) for one in given):
        return NotImplemented
    places = torch.broadcast_shapes(*(one.shape for one in given))  # type: ignore[no-untyped-call]
    front = x.movedim(axes, list(range(n_axes)))
    rest = front.shape[n_axes:]
    if axes[-1] - first == n_axes - 1:  # the axes of the places are where those of the indices were
        values = values.expand(*rest[:first], *places, *rest[first:])
        own = list(range(first, first + len(places)))
        values = values.movedim(own, list(range(len(places))))
    written = front.index_put(given, values.expand(*places, *rest), accumulate)
    return written.movedim(list(range(n_axes)), axes)


def _is_of_three_or_dots(equation: str, tensors: Sequence[torch.Tensor], **_: Any) -> bool:
    """True for products of which OpenVINO multiplies other axes: of three tensors, or with ``...``."""
    return len(tensors) > 2 or "..." in equation


def taken_apart() -> dict[Any, Any]:
    """Per operator that OpenVINO lacks the function of other operators that does the same."""
    of_complex = of_complex_numbers()
    return {
        **of_complex,
        **{one: _wrapped(one, of_complex.get(one, _left_alone)) for one in _GO_ROUND},
        _aten.bitwise_or.Scalar: lambda x, y: x | torch.full_like(x, y),
        _aten.bitwise_xor.Scalar: lambda x, y: x ^ torch.full_like(x, y),
        _aten.diagonal.default: _diagonal,
        _aten.div.Scalar_mode: _quotient,
        _aten.div.Tensor_mode: _quotient,
        _aten.isinf.default: lambda x: x.abs() == math.inf,
        _aten._trilinear.default: _trilinear,
        _aten.einsum.default: Sometimes(
            _is_of_three_or_dots, partial(composed, _aten.einsum.default)
        ),
        _aten.gather.default: _rows_taken,
        _aten.unfold.default: _windows,
        _aten.sub.Scalar: _difference,
        _aten.index_put.default: _places_written,
        _aten.index_add.default: decomp.decomposition_table[_aten.index_add.default],
        _aten.linalg_cross.default: decomp.decomposition_table[_aten.linalg_cross.default],
        _aten.linalg_vector_norm.default: _norm,
        _aten.histc.default: _histogram,
        _aten.empty_permuted.default: _zeros,
        _aten.trunc.default: _truncated,
        _aten.round.decimals: _rounded,
        _aten.addmv.default: _plus_product,
        _aten.exp2.default: lambda x: torch.pow(2.0, x),
        _aten.__lshift__.Scalar: _shifted_left,
        _aten.__rshift__.Scalar: _shifted_right,
        _aten.bitwise_left_shift.Tensor_Scalar: _shifted_left,
        _aten.bitwise_right_shift.Tensor_Scalar: _shifted_right,
        _aten.var.correction: _spread,
        _aten.std.correction: _spread_root,
    }
