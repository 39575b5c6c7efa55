"""Does a graph do what the model does for masks that hide nothing, and for masks that hide a part?

A model may read whether a mask hides anything and go another way if it does not, but go one way
only while it is traced: transformers leaves a mask of ones out, except in a trace. Mostly both ways
compute the same. Where they do not, there is one graph for two functions, and no decision about
sizes tells of it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from ..core.errors import ExportError
from ..core.path import Path
from ..lab.lab import Lab
from ..materialise.arguments import close_arguments, materialise
from ..materialise.domains import domains_of
from ..materialise.padding import with_padding
from ..observing.store import Sample, copy_leaves
from ..pytrees.agree import agreement
from .graph import Graph

__all__ = ["mask_difference", "mask_refusal"]

logger = logging.getLogger(__name__)
#: the two ways may round differently: this much of 1 + the largest value is no rounding
_APART = 1e-2


def mask_difference(graph: Graph, samples: Sequence[Sample], lab: Lab) -> str:
    """How a graph differs from the model for padding masks of one kind; nothing where it does not,
    or where neither of them can be tried.
    """
    plan = graph.plan
    values, domains = materialise(plan, graph.sizes, samples), domains_of(samples)
    plain = with_padding(plan, values, domains, hidden=False)
    padded = with_padding(plan, values, domains, hidden=True)
    if plain is None and padded is None:
        return ""
    return _difference(graph, plain or values, lab, "hide nothing") or _difference(
        graph, padded or values, lab, "hide a part of some rows"
    )


def _difference(graph: Graph, values: dict[Path, Any], lab: Lab, kind: str) -> str:
    plan = graph.plan
    try:
        expected = lab.run(close_arguments(plan, values), why=f"masks that {kind}", memo=True)
        got = graph(copy_leaves(tuple(values[leaf.path] for leaf in plan.inputs)))
    except Exception as error:
        logger.debug("masks that %s are not tried: %s", kind, error)
        return ""
    found = agreement(expected.structure.paths(), expected.leaves, got, atol=_APART)
    return f"with masks that {kind}, {found.note}" if not found.holds else ""


def mask_refusal(graph: Graph, difference: str) -> ExportError:
    """The error about a graph that differs, however the model was traced."""
    plan = graph.plan
    return ExportError(
        f"{plan.model or 'The model'}.{plan.method} computes something else while it is traced:"
        f" {difference}.",
        slug="mask-decides",
        hint=(
            "The model reads the values of a mask, and goes another way in a trace. Let both ways"
            " compute the same, or watch calls without the mask."
        ),
    )
