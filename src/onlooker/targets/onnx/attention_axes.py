"""Attention over other than four axes, which torch's converter refuses.

torch takes queries ``(..., tokens, size)`` with any number of axes before; the converter wants
``(batch, heads, tokens, size)``. The others become the products and the softmax that torch itself
computes attention with where it has no kernel for it. Upstream:
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/onnx/_internal/exporter/_torchlib/ops/nn.py,
``aten_scaled_dot_product_attention_23``: "only 4D query, key, and value are supported". This may go
when that check does.
"""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node

__all__ = ["attention_over_any_axes"]

_aten = torch.ops.aten
_ATTENTION = _aten.scaled_dot_product_attention.default
_BY_PRODUCTS = _aten._scaled_dot_product_attention_math.default
_AXES = 4


@contextlib.contextmanager
def attention_over_any_axes(program: torch.export.ExportedProgram) -> Iterator[int]:
    """Inside the block the attentions of ``program`` over other than four axes are computed by
    products.

    Yields the number of attentions that were changed. On exit the graph is what it was.
    """
    modules = [  # a block of autocast is a graph of its own
        module for module in program.graph_module.modules() if isinstance(module, GraphModule)
    ]
    changed: list[_ByProducts] = []
    try:
        for module in modules:
            for node in list(module.graph.find_nodes(op="call_function", target=_ATTENTION)):
                if node.meta["val"].dim() != _AXES:
                    changed.append(_ByProducts(node))
            module.recompile()
        yield len(changed)
    finally:
        for attention in changed:
            attention.undo()
        for module in modules:
            module.recompile()


class _ByProducts:
    """One attention that is computed by products; its result is the first of two."""

    def __init__(self, node: Node) -> None:
        self._node, self._before = node, (node.args, node.kwargs)
        self._added: list[Node] = []
        for mask in (*node.args[3:4], node.kwargs.get("attn_mask")):
            if isinstance(mask, Node) and mask.meta["val"].dtype == torch.bool:
                self._hide_where_false(mask)
        node.target = _BY_PRODUCTS
        with node.graph.inserting_after(node):
            result = self._call(operator.getitem, (node, 0))
        result.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(result, delete_user_cb=lambda user: user is not result)

    def _hide_where_false(self, mask: Node) -> None:
        """The products add a mask to the scores: minus infinity in the place of False."""
        dtype = self._node.meta["val"].dtype
        with self._node.graph.inserting_before(self._node):
            shown = self._call(_aten.zeros_like.default, (mask,), {"dtype": dtype})
            hidden = self._call(_aten.logical_not.default, (mask,))
            added = self._call(_aten.masked_fill.Scalar, (shown, hidden, -math.inf))
        self._node.replace_input_with(mask, added)

    def _call(
        self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
    ) -> Node:
        made = self._node.graph.call_function(target, args, kwargs or {})
        self._added.append(made)
        return made

    def undo(self) -> None:
        """The attention is what it was."""
        self._added[-1].replace_all_uses_with(self._node)
        self._node.target = _ATTENTION
        self._node.args, self._node.kwargs = self._before
        for made in reversed(self._added):
            made.graph.erase_node(made)
