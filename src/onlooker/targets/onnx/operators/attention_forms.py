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

import contextlib
import math
import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Node

from ....torch_internals.graph_modules import modules_of, replace_for_others

__all__ = ["attention_as_converted"]

_aten = torch.ops.aten
_ATTENTION = _aten.scaled_dot_product_attention.default
_BY_PRODUCTS = _aten._scaled_dot_product_attention_math.default
_AXES = 4


@contextlib.contextmanager
def attention_as_converted(program: torch.export.ExportedProgram) -> Iterator[int]:
    """Inside the block the attentions of ``program`` have the forms that the converter takes.

    Yields the number of attentions that were changed. On exit the graph is what it was.
    """
    modules = modules_of(program)
    changed: list[_Attention] = []
    try:
        for module in modules:
            for node in list(module.graph.find_nodes(op="call_function", target=_ATTENTION)):
                changed.append(_Attention(node))
                changed[-1].change()
            module.recompile()
        yield sum(attention.is_changed for attention in changed)
    finally:
        for attention in changed:
            attention.undo()
        for module in modules:
            module.recompile()


class _Attention:
    """One attention, as it was and as it is."""

    def __init__(self, node: Node) -> None:
        self._node, self._before = node, (node.args, node.kwargs)
        self._inputs: tuple[Any, ...] = node.args
        self._added: list[Node] = []

    @property
    def is_changed(self) -> bool:
        """True when the attention had another form."""
        return bool(self._added)

    def change(self) -> None:
        """Gives the attention the form that the converter takes."""
        if self._node.meta["val"].dim() != _AXES:
            self._compute_by_products()
            return
        query, key, value = self._inputs[:3]
        heads = [each.meta["val"].shape[1] for each in (query, key, value)]
        if [type(count) is int and count == 1 for count in heads] == [False, True, True]:
            repeated = [self._repeated(each, query) for each in (key, value)]
            self._node.args = (query, *repeated, *self._inputs[3:])

    def _repeated(self, states: Any, query: Any) -> Node:
        """The one head of keys or values for every head, as models that share heads write it."""
        heads = query.meta["val"].shape[1]
        with self._node.graph.inserting_before(self._node):
            if not isinstance(heads, int):
                heads = self._call(_aten.sym_size.int, (query, 1))
            apart = self._call(_aten.unsqueeze.default, (states, 2))
            each = self._call(_aten.expand.default, (apart, [-1, -1, heads, -1, -1]))
            return self._call(_aten.flatten.using_ints, (each, 1, 2))

    def _compute_by_products(self) -> None:
        """The result is the first of the two that the products give."""
        node = self._node
        for mask in (*self._inputs[3:4], node.kwargs.get("attn_mask")):
            if isinstance(mask, Node) and mask.meta["val"].dtype == torch.bool:
                self._hide_where_false(mask)
        node.target = _BY_PRODUCTS
        with node.graph.inserting_after(node):
            result = node.graph.call_function(operator.getitem, (node, 0))
        result.meta["val"] = node.meta["val"]
        self._added.append(result)
        replace_for_others(node, result)

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
        kwargs = kwargs or {}
        made = self._node.graph.call_function(target, args, kwargs)
        values = torch.fx.map_arg(args, lambda node: node.meta["val"])
        with self._node.meta["val"].fake_mode:
            made.meta["val"] = target(*values, **kwargs)
        self._added.append(made)
        return made

    def undo(self) -> None:
        """The attention is what it was."""
        if self._node.target is _BY_PRODUCTS:
            self._added[-1].replace_all_uses_with(self._node)
            self._node.target = _ATTENTION
        self._node.args, self._node.kwargs = self._before
        for made in reversed(self._added):
            made.graph.erase_node(made)
