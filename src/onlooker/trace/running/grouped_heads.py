"""Attention in which several heads of queries share a head of keys and values, without copies of these.

A trace of a model of transformers repeats the heads before it attends, since the model decides by the
mask whether it has to: ``(batch, 4, length, 64)`` is expanded to ``(batch, 4, 2, length, 64)`` and
copied as ``(batch, 8, length, 64)``, in each layer and for each token the whole cache. The attention
of torch reads each head as often as it is needed, which gives the same numbers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

__all__ = ["share_heads"]

_aten = torch.ops.aten
_ATTENTION = _aten.scaled_dot_product_attention.default
_RESHAPES = (_aten.reshape.default, _aten.view.default, _aten._unsafe_view.default)
_END = 2**63 - 1


def share_heads(graph: Graph) -> None:
    """Hands the heads as they are to each attention of a graph that repeats them, on the CPU."""
    for node in graph.find_nodes(op="call_function", target=_ATTENTION):
        query, key, value = node.args[:3]
        keys, values = _repeated(key), _repeated(value)
        if keys is None or values is None or "enable_gqa" in node.kwargs:
            continue
        heads = _sizes(query)[1:2]
        if heads == _sizes(key)[1:2] == _sizes(value)[1:2]:
            node.args = (query, keys, values, *node.args[3:])
            node.kwargs = {**node.kwargs, "enable_gqa": True}
            _erase(graph, key)
            _erase(graph, value)


def _repeated(states: Any) -> Node | None:
    """The keys or values of which these are each head several times in a row; None where they are
    anything else.
    """
    expanded = states.args[0] if states.target in _RESHAPES else None
    if not isinstance(expanded, Node) or expanded.target is not _aten.expand.default:
        return None
    wide = _whole(expanded.args[0])
    if wide.target is not _aten.unsqueeze.default or wide.args[1] not in (2, -3):
        return None
    source: Any = wide.args[0]
    sizes, expanded_sizes = _sizes(source), _sizes(expanded)
    if len(sizes) != 4 or len(expanded_sizes) != 5 or source.meta["val"].device.type != "cpu":
        return None
    batch, heads, *rest = sizes
    times = expanded_sizes.pop(2)
    if not (heads.isdigit() and times.isdigit()) or expanded_sizes != sizes:
        return None
    return source if _sizes(states) == [batch, str(int(times) * int(heads)), *rest] else None


def _whole(node: Any) -> Node:
    """The tensor that is sliced from its first to its last element, ``x[:, :]``."""
    while node.target is _aten.slice.Tensor and node.args[2:] == (0, _END):
        node = node.args[0]
    whole: Node = node
    return whole


def _sizes(node: Any) -> list[str]:
    """The sizes of the tensor of a node, as texts; none where they are not known."""
    tensor = node.meta.get("val")
    return [str(size) for size in tensor.shape] if isinstance(tensor, torch.Tensor) else []


def _erase(graph: Graph, node: Node) -> None:
    """Takes a view out that nothing reads any more, and what it alone read."""
    while not node.users and node.op == "call_function":
        before: Any = node.args[0]
        graph.erase_node(node)
        node = before
