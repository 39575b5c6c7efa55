"""What a model of ONNX says about itself: plan, ranges, conditions and versions, as its
metadata.
"""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ...contract.places import formulas_of, spelled_axis
from ...core.codec import write_document
from ...core.plan import Plan
from ...trace.graph import Graph

__all__ = ["write_about"]

_PREFIX = "onlooker."


def write_about(model: Any, graph: Graph) -> None:
    """Writes into a converted model what is known of the graph of torch that it was.

    ``onlooker.versions``, ``.inputs`` (name -> path), ``.outputs``, ``.symbols`` (name -> least and
    greatest size), ``.conditions`` (what the inputs have to obey) and ``.plan`` are JSON.
    """
    versions = {name: _version(name) for name in ("onlooker", "torch", "onnxscript")}
    known = {
        "versions": versions,
        "inputs": {
            label: leaf.path.code()
            for label, leaf in zip(graph.labels, graph.plan.inputs, strict=True)
        },
        "outputs": list(graph.outputs.names),
        "symbols": {symbol.name: [symbol.low, symbol.high] for symbol in graph.plan.symbols},
        "conditions": list(formulas_of(graph.plan, graph.contract, spelled_axis(graph.names))),
        "plan": write_document("plan", Plan, graph.plan),
    }
    for key, value in known.items():
        model.metadata_props[f"{_PREFIX}{key}"] = json.dumps(value)
    model.producer_name, model.producer_version = "onlooker", versions["onlooker"]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:  # run from its source
        return "unknown"
