"""Operators on complex numbers that torch's converter knows for real ones only, as operators on
pairs of these.

Why: rotary embeddings of some models multiply by complex numbers, and give them an axis before. The
converter writes a complex number as a last axis of two; for an axis that is added, chosen or
expanded it has no function there, though what it has for real numbers would do.
``custom_translation_table`` takes functions for real numbers only.

Upstream: https://github.com/pytorch/pytorch/blob/v2.13.0/torch/onnx/_internal/exporter/_compat.py,
at "Support complex inputs". It may go when the converter has these functions;
``tests/targets/test_onnx_operators.py`` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.fx import Graph, Node

from ....torch_internals.graph_modules import called, written_anew

__all__ = ["complex_numbers_as_pairs"]

_aten = torch.ops.aten


def _before_the_pair(dim: int, *rest: Any) -> tuple[Any, ...]:
    """The dimension among those of the numbers, where the pairs have one more at the end."""
    return (dim if dim >= 0 else dim - 1, *rest)


def _with_the_pair(size: list[Any], *rest: Any) -> tuple[Any, ...]:
    return ([*size, 2], *rest)


def _shifted(dims: Any = None) -> tuple[Any, ...] | None:
    """None for a shift of all dimensions, the pair among them."""
    return ([_before_the_pair(dim)[0] for dim in dims],) if dims else None


def _rolled(shifts: Any, dims: Any = None) -> tuple[Any, ...] | None:
    """None for a roll of all numbers in a row."""
    found = _shifted(dims)
    return None if found is None else (shifts, *found)


def _padded(amounts: list[Any], mode: Any = "constant", number: Any = None) -> Any:
    """None for a pad by other numbers than 0."""
    return ([0, 0, *amounts],) if mode == "constant" and not number else None


#: operator -> its arguments after the tensor, for the pairs; None where these would be something else
_ON_PAIRS: dict[Any, Callable[..., tuple[Any, ...] | None]] = {
    _aten.constant_pad_nd.default: lambda amounts, number=0: _padded(amounts, number=number),
    _aten.cumsum.default: _before_the_pair,
    _aten.expand.default: _with_the_pair,
    _aten.fft_fftshift.default: _shifted,
    _aten.fft_ifftshift.default: _shifted,
    _aten.index_select.default: _before_the_pair,
    _aten.pad.default: _padded,
    _aten.repeat.default: lambda counts: ([*counts, 1],),
    _aten.roll.default: _rolled,
    _aten.select.int: _before_the_pair,
    _aten.unsqueeze.default: _before_the_pair,
    _aten.zeros_like.default: lambda: (),
}
#: operators that are another one for the pairs: ``pad`` by 0
_INSTEAD = {_aten.pad.default: _aten.constant_pad_nd.default}


def complex_numbers_as_pairs(graph: Graph) -> None:
    """Lets these operators of a graph work on the pairs, ``view_as_complex(operator(view_as_real(x)))``,
    which changes nothing that it computes in torch.
    """
    for target in _ON_PAIRS:
        for node in graph.find_nodes(op="call_function", target=target):
            is_plain = not any(one for one in node.kwargs.values() if one != "constant")
            if not (is_plain and node.args[0].meta["val"].is_complex()):
                continue
            given = _ON_PAIRS[target](*node.args[1:])
            if given is not None:
                written_anew(graph, node, partial(_on_pairs, given))
    for target in (_aten.where.self, _aten.masked_fill.Scalar):
        for node in graph.find_nodes(op="call_function", target=target):
            if node.meta["val"].is_complex() and (target is _aten.where.self or node.args[2] == 0):
                written_anew(graph, node, _chosen)


def _on_pairs(given: tuple[Any, ...], graph: Graph, node: Any) -> Node:
    pairs = called(graph, _aten.view_as_real.default, node.args[0])
    changed = called(graph, _INSTEAD.get(node.target, node.target), pairs, *given)
    return called(graph, _aten.view_as_complex.default, changed)


def _chosen(graph: Graph, node: Any) -> Node:
    """A choice between complex numbers, or between these and 0: of both parts by the one condition."""
    pairs = [_as_pairs(graph, one, node.meta["val"].dtype) for one in _choices(node)]
    condition = node.args[0 if node.target is _aten.where.self else 1]
    if len(pairs) == 1:
        pairs.insert(0, called(graph, _aten.zeros_like.default, pairs[0]))
    whole = called(graph, _aten.unsqueeze.default, condition, -1)
    found = called(graph, _aten.where.self, whole, *pairs)
    return called(graph, _aten.view_as_complex.default, found)


def _choices(node: Node) -> Sequence[Any]:
    return node.args[1:] if node.target is _aten.where.self else node.args[:1]


def _as_pairs(graph: Graph, value: Node, dtype: torch.dtype) -> Node:
    if value.meta["val"].dtype is not dtype:
        value = called(graph, _aten._to_copy.default, value, dtype=dtype)
    return called(graph, _aten.view_as_real.default, value)
