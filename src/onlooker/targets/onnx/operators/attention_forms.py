"""Forms of attention that torch takes and torch's converter refuses.

torch takes queries ``(..., tokens, size)`` with any number of axes before; the converter wants
``(batch, heads, tokens, size)``. The others become the products and the softmax that torch itself
computes attention with where it has no kernel for it. torch also takes one head of keys and values
for all heads of queries; from opset 23 on the converter wants as many, so that the head is repeated.

Upstream:
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/onnx/_internal/exporter/_torchlib/ops/nn.py,
``aten_scaled_dot_product_attention_23``: "only 4D query, key, and value are supported" and "SDPA
(MHA) requires q_num_heads = kv_num_heads". This may go when these checks do.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch.fx import Graph, Node

from ....torch_internals.graph_modules import called, replace_for_others

__all__ = ["attention_as_converted"]

_aten = torch.ops.aten
_ATTENTION = _aten.scaled_dot_product_attention.default
_BY_PRODUCTS = _aten._scaled_dot_product_attention_math.default
_AXES = 4


def attention_as_converted(graph: Graph) -> None:
    """Gives the attentions of a graph the forms that the converter takes."""
    for node in graph.find_nodes(op="call_function", target=_ATTENTION):
        with graph.inserting_before(node):
            if node.meta["val"].dim() != _AXES:
                _compute_by_products(graph, node)
                continue
            query, *states = node.args[:3]
            heads = [each.meta["val"].shape[1] for each in (query, *states)]
            if [type(count) is int and count == 1 for count in heads] == [False, True, True]:
                repeated = [_repeated(graph, each, query, heads[0]) for each in states]
                node.args = (query, *repeated, *node.args[3:])


def _repeated(graph: Graph, states: Any, query: Any, heads: Any) -> Node:
    """The one head of keys or values for every head, as models that share heads write it."""
    if not isinstance(heads, int):
        heads = called(graph, _aten.sym_size.int, query, 1)
    apart = called(graph, _aten.unsqueeze.default, states, 2)
    each = called(graph, _aten.expand.default, apart, [-1, -1, heads, -1, -1])
    return called(graph, _aten.flatten.using_ints, each, 1, 2)


def _compute_by_products(graph: Graph, node: Node) -> None:
    """The result is the first of the two that the products give."""
    for mask in (*node.args[3:4], node.kwargs.get("attn_mask")):
        if isinstance(mask, Node) and mask.meta["val"].dtype == torch.bool:
            node.replace_input_with(mask, _added(graph, mask, node.meta["val"].dtype))
    node.target = _BY_PRODUCTS
    with graph.inserting_after(node):
        result = graph.call_function(operator.getitem, (node, 0))
    result.meta["val"] = node.meta["val"]
    replace_for_others(node, result)


def _added(graph: Graph, mask: Node, dtype: torch.dtype) -> Node:
    """The products add a mask to the scores: minus infinity in the place of False."""
    shown = called(graph, _aten.zeros_like.default, mask, dtype=dtype)
    hidden = called(graph, _aten.logical_not.default, mask)
    return called(graph, _aten.masked_fill.Scalar, shown, hidden, -math.inf)
