"""Operators of which a runtime computes other numbers than torch, written with operators of which it computes the same.

* ONNX Runtime 1.31 compares 64-bit ints by their low halves where it looks for the greater or the greatest one, so
  that time stamps in milliseconds have another ``amax`` and ``clamp`` once in 25 days. Its ``Greater`` and
  ``ArgMax`` are right.
* OpenVINO 2026.4 gives the least float for the maximum of infinite numbers alone, as of a row that is all hidden.
* OpenVINO 2026.4 adds up bools and bytes in 8 bits: ``mask.cumsum(-1)`` wraps after 255 tokens.
* ONNX Runtime and OpenVINO give 0 for the mean of no numbers, where torch gives NaN: ``x[mask].mean(0)``.

The comparisons may go when ONNX Runtime chooses as torch does: ``tests/targets/test_exact_numbers.py`` fails then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.fx import Graph, Node

from ..torch_internals.graph_modules import called, written_anew
from ..torch_internals.sizes import free_unbacked_symbols

__all__ = [
    "extremes_of_infinite_numbers",
    "long_ints_compared",
    "means_of_no_numbers",
    "short_ints_added_up",
]

_aten = torch.ops.aten
_Change = Callable[[Graph, Any], Any]


def long_ints_compared(graph: Graph) -> None:
    """Lets a graph choose among 64-bit ints by comparisons, which changes nothing that it computes in torch."""
    for target, change in _CHOICES.items():
        for node in graph.find_nodes(op="call_function", target=target):
            if _is_long(node):
                written_anew(graph, node, change)


def means_of_no_numbers(graph: Graph) -> None:
    """Lets a graph divide a sum by a count where a mean may be one of no numbers, as that of selected rows."""
    for target in (_aten.mean.default, _aten.mean.dim):
        for node in graph.find_nodes(op="call_function", target=target):
            numbers: Any = node.args[0]
            value = numbers.meta["val"]
            if free_unbacked_symbols(value) and value.is_floating_point() and not node.kwargs:
                written_anew(graph, node, _mean)


def extremes_of_infinite_numbers(graph: Graph) -> None:
    """Lets a graph give ``-inf`` for the maximum of numbers that are all ``-inf``, and ``inf`` for such a minimum."""
    for target, infinite in _EXTREMES.items():
        for node in graph.find_nodes(op="call_function", target=target):
            numbers: Any = node.args[0]
            value = numbers.meta["val"]
            if not value.is_floating_point() or not value.ndim:
                continue
            values = [node] if isinstance(node.meta["val"], torch.Tensor) else _values_of(node)
            for found in values:
                written_anew(graph, found, partial(_filled_where_infinite, node, infinite))


def _values_of(node: Node) -> list[Node]:
    """The numbers that an operator gives beside their indices."""
    return [user for user in node.users if user.args[1] == 0]


def _filled_where_infinite(node: Any, infinite: float, graph: Graph, found: Any) -> Node:
    """The numbers that ``node`` finds, filled where all that it looks at are infinite; ``found`` is the node that gives
    them.
    """
    x, dims, keeps = (*node.args, [], False)[:3]
    rank = x.meta["val"].ndim
    dims = [dims] if isinstance(dims, int) else dims
    dims = sorted({dim % rank for dim in dims} if dims else range(rank))
    hidden = called(graph, _aten.eq.Scalar, x, infinite)
    for dim in dims:
        hidden = called(graph, _aten.all.dim, hidden, dim, True)
    hidden = hidden if keeps else called(graph, _aten.squeeze.dims, hidden, dims)
    again = called(graph, found.target, *found.args)
    return called(graph, _aten.masked_fill.Scalar, again, hidden, infinite)


def short_ints_added_up(graph: Graph) -> None:
    """Lets a graph add up, and multiply, 64-bit ints row by row, where it is given bools or shorter ints."""
    for target in (_aten.cumsum.default, _aten.cumprod.default):
        for node in graph.find_nodes(op="call_function", target=target):
            numbers: Any = node.args[0]
            value = numbers.meta["val"]
            if not (value.is_floating_point() or value.is_complex()):
                with graph.inserting_before(node):
                    node.args = (_long(graph, numbers), *node.args[1:])


def _is_long(node: Node) -> bool:
    """True for an operator on tensors and numbers that gives 64-bit ints; of several results the first one counts."""
    value = node.meta["val"]
    value = value[0] if isinstance(value, (tuple, list)) else value
    has_sizes = any(not isinstance(one.meta["val"], torch.Tensor) for one in node.all_input_nodes)
    return bool(value.dtype is torch.int64) and not has_sizes


def _long(graph: Graph, number: Any) -> Any:
    """A tensor of shorter ints as one of 64-bit ints; anything else as it is."""
    is_short = isinstance(number, Node) and number.meta["val"].dtype is not torch.int64
    return called(graph, _aten._to_copy.default, number, dtype=torch.int64) if is_short else number


def _mean(graph: Graph, node: Any) -> Node:
    x, *about = node.args
    dtype = x.meta["val"].dtype
    wide = torch.promote_types(dtype, torch.float32)
    total = _aten.sum.dim_IntList if about else _aten.sum.default
    ones = called(graph, _aten.ones_like.default, x, dtype=wide)
    count = called(graph, total, ones, *about)
    mean = called(graph, _aten.div.Tensor, called(graph, total, x, *about, dtype=wide), count)
    return mean if wide is dtype else called(graph, _aten._to_copy.default, mean, dtype=dtype)


def _of_two(compare: Any) -> _Change:
    def change(graph: Graph, node: Any) -> Node:
        x, y = (_long(graph, one) for one in node.args[:2])
        return called(graph, _aten.where.self, called(graph, compare, x, y), x, y)

    return change


def _limits(node: Any) -> Iterator[tuple[Any, bool]]:
    """Yields each bound of a clamp, a number or the node of a tensor, and whether it is the lower one."""
    name = node.target._schema.name.rstrip("_")
    _, low, high = (*node.args, None, None)[:3]
    low, high = node.kwargs.get("min", low), node.kwargs.get("max", high)
    if name == "aten::relu":
        low = 0
    if name == "aten::clamp_max":
        low, high = None, node.args[1]
    if low is not None:
        yield low, True
    if high is not None:
        yield high, False


def _clamped(graph: Graph, node: Any) -> Any:
    x = _long(graph, node.args[0])
    for limit, is_lower in _limits(node):
        compare = _aten.lt if is_lower else _aten.gt
        bound = _long(graph, limit)
        if isinstance(bound, Node):
            beyond = called(graph, compare.Tensor, x, bound)
            x = called(graph, _aten.where.self, beyond, bound, x)
        else:
            beyond = called(graph, compare.Scalar, x, bound)
            x = called(graph, _aten.masked_fill.Scalar, x, beyond, bound)
    return x


def _clamped_in_place(graph: Graph, node: Any) -> Any:
    return called(graph, _aten.copy_.default, node.args[0], _clamped(graph, node))


def _extreme(place: Any) -> _Change:
    """``amax`` and ``max`` over dimensions: the number at the index of the greatest one in each of them."""

    def change(graph: Graph, node: Any) -> Node:
        x, dims, keeps = (*node.args, [], False)[:3]
        rank = x.meta["val"].ndim
        dims = sorted({dim % rank for dim in dims} if dims else range(rank))
        for dim in dims:
            found = called(graph, place, x, dim, True)
            x = called(graph, _aten.gather.default, x, dim, found)
        return x if keeps or not dims else called(graph, _aten.squeeze.dims, x, dims)

    return change


def _extreme_of_one(place: Any) -> _Change:
    """``max`` over one dimension, which gives the greatest numbers and their indices."""

    def change(graph: Graph, node: Any) -> Node:
        x, dim, keeps = (*node.args, False)[:3]
        found = called(graph, place, x, dim, True)
        numbers = called(graph, _aten.gather.default, x, dim, found)
        parts = [
            one if keeps else called(graph, _aten.squeeze.dim, one, dim) for one in (numbers, found)
        ]
        for reader in list(node.users):
            reader.replace_all_uses_with(parts[reader.args[1]])
            graph.erase_node(reader)
        return numbers

    return change


#: operators that choose among numbers -> what they are for 64-bit ints
_CHOICES: dict[Any, _Change] = {
    **dict.fromkeys((_aten.maximum.default, _aten.max.other), _of_two(_aten.gt.Tensor)),
    **dict.fromkeys((_aten.minimum.default, _aten.min.other), _of_two(_aten.lt.Tensor)),
    **dict.fromkeys((_aten.amax.default, _aten.max.default), _extreme(_aten.argmax.default)),
    **dict.fromkeys((_aten.amin.default, _aten.min.default), _extreme(_aten.argmin.default)),
    _aten.max.dim: _extreme_of_one(_aten.argmax.default),
    _aten.min.dim: _extreme_of_one(_aten.argmin.default),
    **dict.fromkeys(
        (
            *(_aten.clamp.default, _aten.clamp.Tensor, _aten.clip.default, _aten.clip.Tensor),
            *(_aten.clamp_min.default, _aten.clamp_min.Tensor),
            *(_aten.clamp_max.default, _aten.clamp_max.Tensor, _aten.relu.default),
        ),
        _clamped,
    ),
    **dict.fromkeys(
        (
            *(_aten.clamp_.default, _aten.clamp_.Tensor, _aten.clip_.default, _aten.clip_.Tensor),
            *(_aten.clamp_min_.default, _aten.clamp_min_.Tensor),
            *(_aten.clamp_max_.default, _aten.clamp_max_.Tensor, _aten.relu_.default),
        ),
        _clamped_in_place,
    ),
}

#: the operators that choose the greatest or the least number, and the number that each has to choose where all are that
_EXTREMES = {
    **dict.fromkeys((_aten.amax.default, _aten.max.default, _aten.max.dim), -math.inf),
    **dict.fromkeys((_aten.amin.default, _aten.min.default, _aten.min.dim), math.inf),
}
