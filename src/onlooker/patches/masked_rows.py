"""Attention over rows that are masked entirely, for the conversion to ONNX.

Why: with a bool mask, ``scaled_dot_product_attention`` gives zeros for a query that may look at nothing (the
padding on the left of a prompt). The conversion to ONNX adds the lowest float instead, so that such a
query looks at everything: the padded positions differ, and with them the cache that is returned.

Upstream: https://github.com/pytorch/pytorch/issues/103749 (zeros for such rows in torch). It may go when the
conversion gives zeros too; ``tests/test_language_models.py`` fails then, because the repair is no longer needed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch.fx import Node

__all__ = ["masked_rows_give_zeros"]

_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default
_MASK = 3


@contextlib.contextmanager
def masked_rows_give_zeros(program: torch.export.ExportedProgram) -> Iterator[int]:
    """Inside the block the attentions of ``program`` say explicitly that such rows are zeros.

    Yields the number of attentions that were changed. On exit the graph is what it was. The change does not
    alter what the program computes in torch.
    """
    graph = program.graph_module.graph
    added: list[tuple[Node, Node, Node]] = []
    try:
        for node in list(graph.find_nodes(op="call_function", target=_ATTENTION)):
            mask = _bool_mask(node)
            if mask is not None:
                added.append((node, *_insert(graph, node, mask)))
        program.graph_module.recompile()
        yield len(added)
    finally:
        for node, seen, chosen in added:
            chosen.replace_all_uses_with(node)
            graph.erase_node(chosen)
            graph.erase_node(seen)
        program.graph_module.recompile()


def _bool_mask(node: Node) -> Node | None:
    mask = node.args[_MASK] if len(node.args) > _MASK else node.kwargs.get("attn_mask")
    if isinstance(mask, Node) and mask.meta["val"].dtype == torch.bool:
        return mask
    return None


def _insert(graph: torch.fx.Graph, node: Node, mask: Node) -> tuple[Node, Node]:
    """``where(any(mask, -1, True), attention, 0)`` after the attention, with shapes as torch.export keeps them."""
    any_dim, where = torch.ops.aten.any.dim, torch.ops.aten.where.ScalarOther
    with graph.inserting_after(node):
        seen = graph.call_function(any_dim, (mask, -1, True))
    with graph.inserting_after(seen):
        chosen = graph.call_function(where, (seen, node, 0.0))
    with mask.meta["val"].fake_mode:
        seen.meta["val"] = any_dim(mask.meta["val"], -1, True)
        chosen.meta["val"] = where(seen.meta["val"], node.meta["val"], 0.0)
    node.replace_all_uses_with(chosen, delete_user_cb=lambda user: user is not chosen)
    return seen, chosen
