"""What a graph of torch asserts of values: it has the side of a branch that its example took."""

from __future__ import annotations

import torch
from torch.fx import Graph, Node

__all__ = ["asserted_in", "assertions_in"]

_ASSERTIONS = (
    torch.ops.aten._assert_async.default,
    torch.ops.aten._assert_async.msg,
    torch.ops.aten._assert_scalar.default,
)


def assertions_in(graph: Graph) -> list[Node]:
    """The nodes that assert something of values that the graph computes."""
    return [
        node
        for target in _ASSERTIONS
        for node in graph.find_nodes(op="call_function", target=target)
        if isinstance(node.args[0], Node)
    ]


def asserted_in(graph: Graph) -> list[Node]:
    """The nodes whose results have to be true for the graph to be right, each once."""
    conditions = (node.args[0] for node in assertions_in(graph))
    return list(dict.fromkeys(node for node in conditions if isinstance(node, Node)))
