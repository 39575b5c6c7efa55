"""The graphs of an exported program: a block of autocast, and a branch of ``torch.cond``, is a graph of its
own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch.fx import GraphModule, Node

__all__ = ["modules_of", "nodes_of", "nodes_reached"]


def modules_of(program: torch.export.ExportedProgram) -> list[GraphModule]:
    """The modules of all graphs, the outer one first."""
    return [one for one in program.graph_module.modules() if isinstance(one, GraphModule)]


def nodes_of(program: torch.export.ExportedProgram) -> Iterator[Node]:
    """The nodes of all graphs."""
    for module in modules_of(program):
        yield from module.graph.nodes


def nodes_reached(nodes: Iterable[Node], next_of: Callable[[Node], Iterable[Node]]) -> set[Node]:
    """The nodes, and all that are reached from them by ``next_of``."""
    found: set[Node] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += next_of(node)
    return found
