"""Attention over rows that are masked entirely, for the conversion to ONNX.

Why: ``scaled_dot_product_attention`` gives zeros for a query that may look at nothing (the padding
on the left of a prompt). The conversion to ONNX adds the lowest float for a bool mask, so that such
a query looks at everything; with a mask of minus infinities its softmax gives NaN. The padded
positions differ, and with them the cache that is returned.

Upstream: https://github.com/pytorch/pytorch/issues/103749 (zeros for such rows in torch). It may go
when the conversion gives zeros too; ``tests/scenarios/test_language_models.py`` fails then, as the
repair is needed no longer.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Node

from ..torch_internals.graph_modules import modules_of, replace_for_others

__all__ = ["masked_rows_give_zeros"]

_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default
_MASK = 3


@contextlib.contextmanager
def masked_rows_give_zeros(program: torch.export.ExportedProgram) -> Iterator[int]:
    """Inside the block the attentions of ``program`` say explicitly that such rows are zeros.

    Yields the number of attentions that were changed. On exit the graph is what it was. The change
    does not alter what the program computes in torch.
    """
    modules = modules_of(program)
    added: list[list[Node]] = []
    try:
        for module in modules:
            for node in list(module.graph.find_nodes(op="call_function", target=_ATTENTION)):
                mask = _mask(node)
                if mask is not None:
                    added.append(_insert(module.graph, node, mask))
            module.recompile()
        yield len(added)
    finally:
        for node, *new in added:
            new[-1].replace_all_uses_with(node)
            for made in reversed(new):
                made.graph.erase_node(made)
        for module in modules:
            module.recompile()


def _mask(node: Node) -> Node | None:
    mask = node.args[_MASK] if len(node.args) > _MASK else node.kwargs.get("attn_mask")
    return mask if isinstance(mask, Node) else None


def _insert(graph: torch.fx.Graph, node: Node, mask: Node) -> list[Node]:
    """``where(any(mask, -1, True), attention, 0)`` after the attention, with shapes as torch.export
    keeps them.

    Of a mask that is added to the scores, what is not minus infinity counts as seen. Gives the
    attention and the new nodes, in their order.
    """
    unequal, any_dim = torch.ops.aten.ne.Scalar, torch.ops.aten.any.dim
    where = torch.ops.aten.where.ScalarOther
    new = [node]

    def add(target: Any, *args: Any) -> Node:
        with graph.inserting_after(new[-1]):
            made = graph.call_function(target, args)
        values = [arg.meta["val"] if isinstance(arg, Node) else arg for arg in args]
        with mask.meta["val"].fake_mode:
            made.meta["val"] = target(*values)
        new.append(made)
        return made

    is_bool = mask.meta["val"].dtype == torch.bool
    seen = add(any_dim, mask if is_bool else add(unequal, mask, -math.inf), -1, True)
    chosen = add(where, seen, node, 0.0)
    replace_for_others(node, chosen)
    return new
