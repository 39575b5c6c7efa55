"""Makes what the files of a graph say about it: plan, ranges, conditions and versions."""

from __future__ import annotations

from typing import Any

from ..contract.places import formulas_of, spelled_axis
from ..core.plan import Plan
from ..core.versions import version_of
from ..disk.codec import write_document
from ..trace.graph import Graph

__all__ = ["known_of"]


def known_of(graph: Graph, converter: str) -> dict[str, Any]:
    """Returns the known facts of a graph of torch, as plain values for JSON; ``converter`` is the
    package that makes the files.

    ``versions``, ``inputs`` (name -> path), ``outputs``, ``symbols`` (name -> least and greatest
    size), ``conditions`` (what the inputs have to obey) and ``plan``.
    """
    return {
        "versions": {name: version_of(name) for name in ("onlooker", "torch", converter)},
        "inputs": {
            label: leaf.path.code()
            for label, leaf in zip(graph.labels, graph.plan.inputs, strict=True)
        },
        "outputs": list(graph.outputs.names),
        "symbols": {symbol.name: [symbol.low, symbol.high] for symbol in graph.plan.symbols},
        "conditions": list(formulas_of(graph.plan, graph.contract, spelled_axis(graph.names))),
        "plan": write_document("plan", Plan, graph.plan),
    }
