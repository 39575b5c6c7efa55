"""The graphs of an exported program: a block of autocast, and a branch of ``torch.cond``, is a graph of its
own.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.fx import GraphModule, Node

__all__ = ["modules_of", "nodes_of"]


def modules_of(program: torch.export.ExportedProgram) -> list[GraphModule]:
    """The modules of all graphs, the outer one first."""
    return [one for one in program.graph_module.modules() if isinstance(one, GraphModule)]


def nodes_of(program: torch.export.ExportedProgram) -> Iterator[Node]:
    """The nodes of all graphs."""
    for module in modules_of(program):
        yield from module.graph.nodes
