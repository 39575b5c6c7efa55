"""Readable names of the inputs and outputs of a graph, each of which stands once."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.drawing.alike import numbered
from ..trace.graph import Graph

__all__ = ["Names", "names_of"]


@dataclass(frozen=True, slots=True)
class Names:
    """The names of the inputs and the outputs of a model, in their order; no name stands twice."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def names_of(graph: Graph) -> Names:
    """The labels of the leaves, numbered where two leaves have one label."""
    labels = numbered([*graph.labels, *graph.outputs.names])
    count = len(graph.labels)
    return Names(tuple(labels[:count]), tuple(labels[count:]))
