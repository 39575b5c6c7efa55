"""Attention over rows that are masked entirely, for the conversions to ONNX and to OpenVINO.

Why: ``scaled_dot_product_attention`` gives zeros for a query that may look at nothing (the padding
on the left of a prompt). The conversion to ONNX adds the lowest float for a bool mask, so that such
a query looks at everything; with a mask of minus infinities its softmax gives NaN. The padded
positions differ, and with them the cache that is returned.

Upstream: https://github.com/pytorch/pytorch/issues/103749 (zeros for such rows in torch). It may go
when the conversion gives zeros too; ``tests/scenarios/test_language_models.py`` fails then, as the
repair is needed no longer.
"""

from __future__ import annotations

import math

import torch
from torch.fx import Graph, Node

from ..torch_internals.graph_modules import called, replace_for_others

__all__ = ["masked_rows_give_zeros"]

_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default
_MASK = 3


def masked_rows_give_zeros(graph: Graph) -> None:
    """Lets the attentions of a graph say explicitly that such rows are zeros, which changes nothing
    that it computes in torch.
    """
    for node in graph.find_nodes(op="call_function", target=_ATTENTION):
        mask = node.args[_MASK] if len(node.args) > _MASK else node.kwargs.get("attn_mask")
        if isinstance(mask, Node):
            _give_zeros(graph, node, mask)


def _give_zeros(graph: Graph, node: Node, mask: Node) -> None:
    """``where(any(mask, -1, True), attention, 0)`` after the attention, with shapes as torch.export
    keeps them.

    Of a mask that is added to the scores, what is not minus infinity counts as seen.
    """
    aten = torch.ops.aten
    with graph.inserting_before(node.next):
        if mask.meta["val"].dtype != torch.bool:
            mask = called(graph, aten.ne.Scalar, mask, -math.inf)
        seen = called(graph, aten.any.dim, mask, -1, True)
        chosen = called(graph, aten.where.ScalarOther, seen, node, 0.0)
    replace_for_others(node, chosen)
