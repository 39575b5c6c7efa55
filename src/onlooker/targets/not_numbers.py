"""Marks graphs of other runtimes, which do not compute with NaN as torch does.

``amax`` of torch gives NaN where one number is NaN; ONNX Runtime and OpenVINO leave it out, as IEEE
754 allows, and so do their ``Relu``, ``Clip``, ``ArgMax`` and pools. A graph for them takes no NaN,
unless NaN is what the model is about: it asks for it (``isnan``, ``nan_to_num``), or watched calls
had some. Then it is tried beside infinite numbers, and a graph that is wrong with either takes none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch

from ..core.marks import FINITE, NUMBERS
from ..core.runtimes import RUNTIMES
from ..observing.store import Sample
from ..trace.graph import Graph

__all__ = ["not_finite", "without_nan"]

_ASKS = ("isnan", "isfinite", "isinf", "isposinf", "isneginf", "nan_to_num", "nansum", "nanmean")


def without_nan(
    converted: Sequence[Graph], graphs: Iterable[Graph], samples: Sequence[Sample]
) -> list[Graph]:
    """The converted graphs, marked where they take no NaN; ``graphs`` are those of torch."""
    if any(map(_has_nan, samples)):
        return list(converted)
    asking = {graph.name for graph in graphs if _asks_for_nan(graph)}
    return [one if one.name in asking else _marked(one, NUMBERS) for one in converted]


def not_finite(graph: Graph, samples: Sequence[Sample]) -> Graph:
    """A converted graph, marked so that it takes neither NaN nor infinite numbers, unless watched calls
    had NaN.
    """
    return graph if any(map(_has_nan, samples)) else _marked(graph, NUMBERS, FINITE)


def _marked(graph: Graph, *marks: str) -> Graph:
    if not RUNTIMES[graph.target].leaves_out_nan:
        return graph
    own = dict.fromkeys(marks, f"the runtime of {graph.target}")
    return replace(graph, marks={**graph.marks, **own})


def _has_nan(sample: Sample) -> bool:
    return any(
        leaf.is_floating_point() and bool(leaf.isnan().any())
        for leaf in sample.inputs.leaves
        if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided and not leaf.is_meta
    )


def _asks_for_nan(graph: Graph) -> bool:
    nodes = graph.artifact.graph.nodes
    names = {getattr(getattr(node.target, "_schema", None), "name", "") for node in nodes}
    return any(f"aten::{name}" in names for name in _ASKS)
