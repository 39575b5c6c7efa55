"""Results of attention keep the layout in memory that they had in the trace.

``scaled_dot_product_attention`` gives a result laid out as its query, and a model may view it as rows
without a copy, as GPT-2 does. torch decomposes the operator to one whose result always has the
layout of ``nn.MultiheadAttention``, steps outside of rows: such a view then fails.

Upstream: ``scaled_dot_product_flash_attention_for_cpu`` in
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_decomp/decompositions.py. It may go when that
function gives the layout of the query; ``tests/targets/executorch/test_attention.py`` says so.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.fx import Node

from ..inputs import layout_of

__all__ = ["layouts_kept"]

_ATEN = torch.ops.aten
#: what gives another view of a tensor, where it can
_MOVES = (_ATEN.transpose.int, _ATEN.permute.default, _ATEN.reshape.default)


def layouts_kept(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The program with a copy into the layout of the trace behind every attention whose result is
    viewed; the program itself where there is none.
    """
    found = [node.name for node in _attentions(program.graph) if _is_viewed(node)]
    if not found:
        return program
    module = torch.fx.GraphModule(program.graph_module, copy.deepcopy(program.graph))
    module.meta.update(program.graph_module.meta)
    for node in _attentions(module.graph):
        if node.name in found:
            _lay_out(module.graph, node)
    module.recompile()
    return program._update(module, program.graph_signature)


def _attentions(graph: torch.fx.Graph) -> list[Node]:
    target = _ATEN.scaled_dot_product_attention.default
    return list(graph.find_nodes(op="call_function", target=target))


def _is_viewed(node: Node) -> bool:
    """True where a view reads the result, or the result with its dimensions in another order."""
    return any(
        user.target is _ATEN.view.default or (user.target in _MOVES and _is_viewed(user))
        for user in node.users
    )


def _lay_out(graph: torch.fx.Graph, node: Node) -> None:
    """Copies the result of a node into the layout that its fake tensor has."""
    value = node.meta["val"]
    order = layout_of(value)
    if order is None:
        return
    inverse = sorted(range(len(order)), key=order.__getitem__)
    with graph.inserting_after(node):
        outer = graph.call_function(_ATEN.permute.default, (node, order))
    with graph.inserting_after(outer):
        kind: dict[str, Any] = {"memory_format": torch.contiguous_format}
        copied = graph.call_function(_ATEN.clone.default, (outer,), kind)
    with graph.inserting_after(copied):
        back = graph.call_function(_ATEN.permute.default, (copied, inverse))
    node.replace_all_uses_with(back, delete_user_cb=lambda user: user is not outer)
    for made in (outer, copied, back):
        made.meta = dict(node.meta)
    outer.meta["val"] = copied.meta["val"] = value.permute(order)
