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

from collections.abc import Callable
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


#: operator -> its arguments after the tensor, for the pairs
_ON_PAIRS: dict[Any, Callable[..., tuple[Any, ...]]] = {
    _aten.unsqueeze.default: _before_the_pair,
    _aten.select.int: _before_the_pair,
    _aten.expand.default: _with_the_pair,
}


def complex_numbers_as_pairs(graph: Graph) -> None:
    """Lets these operators of a graph work on the pairs, ``view_as_complex(operator(view_as_real(x)))``,
    which changes nothing that it computes in torch.
    """
    for target in _ON_PAIRS:
        for node in graph.find_nodes(op="call_function", target=target):
            if node.args[0].meta["val"].is_complex() and not node.kwargs:
                written_anew(graph, node, _on_pairs)


def _on_pairs(graph: Graph, node: Node) -> Node:
    value, *rest = node.args
    pairs = called(graph, _aten.view_as_real.default, value)
    changed = called(graph, node.target, pairs, *_ON_PAIRS[node.target](*rest))
    return called(graph, _aten.view_as_complex.default, changed)
