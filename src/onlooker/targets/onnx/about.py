"""The metadata of a model of ONNX: plan, ranges, conditions and versions."""

from __future__ import annotations

import json
from typing import Any

from ...trace.graph import Graph
from ..about import known_of

__all__ = ["write_about"]

_PREFIX = "onlooker."


def write_about(model: Any, graph: Graph) -> None:
    """Writes into a converted model what is known of the graph of torch that it was.

    ``onlooker.versions`` and the other keys of :func:`~onlooker.targets.about.known_of` are JSON.
    """
    known = known_of(graph, "onnxscript")
    for key, value in known.items():
        model.metadata_props[f"{_PREFIX}{key}"] = json.dumps(value)
    model.producer_name, model.producer_version = "onlooker", known["versions"]["onlooker"]
