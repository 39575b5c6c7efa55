"""Readable names of the inputs and outputs of a graph, each of which stands once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..trace.graph import Graph

__all__ = ["Names", "names_of", "unique"]


@dataclass(frozen=True, slots=True)
class Names:
    """The names of the inputs and the outputs of a model, in their order; no name stands twice."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def names_of(graph: Graph) -> Names:
    """The labels of the leaves, numbered where two leaves have one label."""
    labels = unique([*graph.labels, *graph.outputs.names])
    count = len(graph.labels)
    return Names(tuple(labels[:count]), tuple(labels[count:]))


def unique(labels: Iterable[str]) -> list[str]:
    """The labels, with a number behind those that stood before.

    >>> unique(["x", "y", "x", "x_1", "x"])
    ['x', 'y', 'x_1', 'x_1_1', 'x_2']
    """
    taken: set[str] = set()
    found: list[str] = []
    for label in labels:
        name, number = label, 0
        while name in taken:
            number += 1
            name = f"{label}_{number}"
        taken.add(name)
        found.append(name)
    return found
