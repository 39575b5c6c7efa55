"""Does a graph with floats as inputs do what the model does? It is asked on values that calls had,
and on others.

A float that decides in the Python of the model ends the trace. Other models ask for the class of
the float, or write it into a text, and then take a way of their own in the trace: on other values
they differ from it.
"""

from __future__ import annotations

import logging
import math
import operator
from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch

from ..core.errors import ExportError
from ..core.path import Path
from ..lab.lab import Lab
from ..materialise.arguments import close_arguments, materialise
from ..materialise.floats import float_choices
from ..observing.store import Sample, copy_leaves
from ..pytrees.agree import agreement
from ..torch_internals.operators import HigherOrderOperator, OpOverload
from ..torch_internals.serialized import SYM_OPS
from .graph import Graph

__all__ = ["checked_floats"]

logger = logging.getLogger(__name__)
_OPERATORS = (OpOverload, HigherOrderOperator)
_WRITTEN = frozenset({operator.getitem, *SYM_OPS})
_BEYOND = (math.inf, -math.inf, math.nan)


def checked_floats(graph: Graph, samples: Sequence[Sample], lab: Lab) -> Graph:
    """The graph, where it gives what the model gives for all floats that are tried and that the
    model takes.

    The graph need not take infinities and NaN that no call had, but gives nothing else for them.

    :raises ExportError: ``float-decides``
    """
    plan = graph.plan
    floats = [leaf for leaf in plan.inputs if leaf.is_float]
    if not floats:
        return graph
    function = _unwritten(graph)
    if function:
        raise _decides(
            graph, "any float", f"the graph has {function}() of it, which torch writes into no file"
        )
    values = materialise(plan, graph.sizes, samples)
    for choice in float_choices(plan):
        _check(graph, values | choice, lab, must_run=True)
    for number in _BEYOND:
        _check(graph, values | {leaf.path: number for leaf in floats}, lab, must_run=False)
    return graph


def _unwritten(graph: Graph) -> str:
    """A function of Python in the graph that torch cannot write into a file, ``round(t)`` for
    instance.
    """
    modules = graph.artifact.graph_module.modules()  # a block of autocast is a graph of its own
    graphs = [module.graph for module in modules if isinstance(module, torch.fx.GraphModule)]
    for node in chain.from_iterable(one.nodes for one in graphs):
        target = node.target
        if (
            node.op == "call_function"
            and not isinstance(target, _OPERATORS)
            and target not in _WRITTEN
        ):
            return str(getattr(target, "__name__", target))
    return ""


def _check(graph: Graph, values: dict[Path, Any], lab: Lab, *, must_run: bool) -> None:
    plan = graph.plan
    shown = ", ".join(f"{leaf.path} = {values[leaf.path]}" for leaf in plan.inputs if leaf.is_float)
    try:
        expected = lab.run(close_arguments(plan, values), why="another float", memo=True)
    except Exception as error:
        logger.debug("%s is refused by the model: %s", shown, type(error).__name__)
        return
    try:
        got = graph(copy_leaves(tuple(values[leaf.path] for leaf in plan.inputs)))
    except Exception as error:
        if must_run:
            raise _decides(
                graph, shown, f"the graph refuses it ({type(error).__name__})"
            ) from error
        return
    found = agreement(expected.structure.paths(), expected.leaves, got)
    if not found.holds:
        raise _decides(graph, shown, found.note)


def _decides(graph: Graph, shown: str, why: str) -> ExportError:
    return ExportError(
        f"A float decides what {graph.plan.model or 'the model'}.{graph.plan.method} computes: with"
        f" {shown}, {why}.",
        slug="float-decides",
        hint=(
            "Compute with the float without asking for its class or its text, to have one graph for"
            " all values."
        ),
    )
