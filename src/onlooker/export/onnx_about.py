"""What a model of ONNX says about itself: plan, ranges, conditions and versions, as its metadata."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ..core.codec import write_document
from ..core.codec_text import damaged, read_json
from ..core.plan import Plan
from .graph import Graph
from .torch_conditions import conditions_of

__all__ = ["conditions_in", "write_about"]

_PREFIX = "onlooker."


def write_about(model: Any, graph: Graph) -> None:
    """Writes into a converted model what is known of the graph of torch that it was.

    ``onlooker.versions``, ``.inputs`` (name -> path), ``.outputs``, ``.symbols`` (name -> least and greatest
    size), ``.conditions`` (what the inputs have to obey) and ``.plan`` are JSON.
    """
    versions = {name: _version(name) for name in ("onlooker", "torch", "onnxscript")}
    known = {
        "versions": versions,
        "inputs": {label: leaf.path.code() for label, leaf in zip(graph.labels, graph.plan.inputs, strict=True)},
        "outputs": list(graph.outputs.names),
        "symbols": {text: list(limits) for text, limits in graph.ranges.items()},
        "conditions": list(conditions_of(graph)),
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


def conditions_in(model: Any, graph_name: str, where: str) -> tuple[str, ...]:
    """The conditions that were written into a model; a merged one has those of each graph by its name.

    :raises SavedFileError: ``file-damaged``
    """
    found = model.metadata_props
    text = found.get(f"{_PREFIX}{graph_name}.conditions", found.get(f"{_PREFIX}conditions"))
    if text is None:
        raise damaged(where, "the model does not say what its inputs have to obey")
    conditions = read_json(text.encode(), where)
    if not isinstance(conditions, list) or not all(isinstance(condition, str) for condition in conditions):
        raise damaged(where, "what its inputs have to obey is no list of texts")
    return tuple(conditions)
