"""Does a graph do what the model does at other sizes than those of its trace?"""

from __future__ import annotations

from collections.abc import Sequence

from ..infer.sizes import trial_sizes
from ..lab.lab import Lab
from ..materialise.arguments import close_arguments, materialise
from ..observing.store import Sample, copy_leaves
from ..pytrees.agree import agreement
from .graph import Graph

__all__ = ["is_exact_elsewhere"]

_TRIALS = 4


def is_exact_elsewhere(graph: Graph, samples: Sequence[Sample], lab: Lab) -> bool:
    """True when the graph gives at other sizes in its contract what the model gives, wherever it
    runs, and it does run somewhere.
    """
    tried = 0
    for _, sizes in trial_sizes(graph.plan, [dict(graph.sizes)]):
        if graph.contract.failing(sizes):
            continue
        values = materialise(graph.plan, sizes, samples)
        try:
            expected = lab.try_out(close_arguments(graph.plan, values))
            got = graph(copy_leaves(tuple(values[leaf.path] for leaf in graph.plan.inputs)))
        except Exception:  # no size for the model, or none of the graph
            continue
        if not agreement(expected.structure.paths(), expected.leaves, got).holds:
            return False
        tried += 1
        if tried >= _TRIALS:
            break
    return tried > 0
