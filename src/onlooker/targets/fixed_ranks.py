"""Binds graphs to sizes for which a runtime that fixes ranks gives what the model gives.

``x.squeeze(0)`` drops a batch of 1 and keeps a batch of 3: the result has another rank. torch does so
when the graph runs, and ONNX can. AOTInductor and OpenVINO are compiled for the rank of the trace, and
ExecuTorch refuses another one, so that their graphs take no size of 1 there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Node

from ..core.contract import Constraint, Origin, Region
from ..core.runtimes import RUNTIMES
from ..model_source.lines import place_of_node
from ..proofs.exported_sizes import sizes_in_plan
from ..trace.graph import Graph

__all__ = ["of_fixed_ranks", "squeezed_axes", "with_constraints"]

_SQUEEZES = frozenset({"aten::squeeze", "aten::squeeze_", "aten::squeeze_copy"})


def of_fixed_ranks(graphs: Iterable[Graph], target: str) -> list[Graph]:
    """The graphs of torch, whose contracts leave out the sizes that a target would be wrong at."""
    if not RUNTIMES[target].fixes_ranks:
        return list(graphs)
    return [with_constraints(graph, tuple(_constraints(graph, target))) for graph in graphs]


def with_constraints(graph: Graph, found: tuple[Constraint, ...]) -> Graph:
    """The graph with further constraints in each region of its contract."""

    def narrowed(region: Region) -> tuple[Region]:
        return (Region((*region.constraints, *found), region.evidence),)

    return replace(graph, contract=graph.contract.narrowed(narrowed)) if found else graph


def _constraints(graph: Graph, target: str) -> Iterator[Constraint]:
    sizes = sizes_in_plan(graph.artifact, graph.plan, graph.names)
    known = set[str]()
    for node in graph.artifact.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if schema is None or schema.name not in _SQUEEZES:
            continue
        for size in squeezed_axes(node)[1]:
            formula = f"{size.node.expr.xreplace(sizes)} != 1"
            if formula not in known:
                known.add(formula)
                place = place_of_node(node)
                reason = f"{target} keeps an axis that {schema.name} drops"
                yield Constraint(formula, Origin.RUNTIME, place, reason)


def squeezed_axes(node: Node) -> tuple[list[int], list[Any]]:
    """The axes that a squeeze drops in the trace, and the sizes that are expressions among those that
    it would drop if they were 1.
    """
    value: Any = node.args[0]
    shape: Sequence[Any] = value.meta["val"].shape
    given: Any = node.args[1] if len(node.args) > 1 else range(len(shape))
    chosen = [given] if isinstance(given, int) else given
    axes = sorted({axis % len(shape) for axis in chosen}) if shape else []
    dropped: list[int] = []
    open_sizes: list[Any] = []
    for axis in axes:
        size = shape[axis]
        if isinstance(size, torch.SymInt):
            open_sizes.append(size)
        elif size == 1:
            dropped.append(axis)
    return dropped, open_sizes
