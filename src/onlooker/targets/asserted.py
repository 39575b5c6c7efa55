"""Finds the assertions about values in a graph of torch: it has the branch that its example took."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.fx import Graph, Node

from ..repairs.numbers.implied_bounds import implied_bounds

__all__ = ["asserted_in", "assertions_in", "conditions_of"]

_ASSERTIONS = (
    torch.ops.aten._assert_async.default,
    torch.ops.aten._assert_async.msg,
    torch.ops.aten._assert_scalar.default,
)


def assertions_in(graph: Graph) -> list[Node]:
    """The nodes that assert something of values that the graph computes; not those that say what range
    a size had in the trace, for which there is the contract.
    """
    implied = set(implied_bounds(graph))
    return [
        node
        for target in _ASSERTIONS
        for node in graph.find_nodes(op="call_function", target=target)
        if isinstance(node.args[0], Node) and node not in implied
    ]


def asserted_in(graph: Graph) -> list[Node]:
    """The nodes whose results have to be true for the graph to be right, each once."""
    return conditions_of(assertions_in(graph))


def conditions_of(assertions: Iterable[Node]) -> list[Node]:
    """Returns the conditions that the assertions say to be true, each once."""
    conditions = (node.args[0] for node in assertions)
    return list(dict.fromkeys(node for node in conditions if isinstance(node, Node)))
