"""Would torch take the sizes of a plan by named Dims? Answered after a trace by hints, without a
second one.

torch refuses a named Dim where a guard of the trace excludes one of its sizes, and says so after
the whole trace. Every guard of a trace is among its decisions: the names are taken where each of
them holds for all sizes of independent Dims. torch alone also asks of each tensor that is not
contiguous whether a size of it is 1, where it keeps a copy of the tensor beside the operator: a trace
of ours asks no such thing (:mod:`onlooker.repairs.quick_nodes`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import sympy
import torch

from ..core.plan import Plan, Range
from ..proofs.decisions import Decision, sources_of
from ..proofs.path_condition import in_sizes
from ..proofs.size_proofs import SizeProofs
from ..torch_internals.graph_modules import nodes_of
from ..torch_internals.sizes import is_contiguous_or_false
from .dims import limits_of
from .graph import Graph

__all__ = ["takes_names", "with_bounds"]


def takes_names(decisions: Iterable[Decision], graph: Graph) -> dict[str, Range]:
    """The expressions of the plan that could be asked for by a name each, with their bounds; none
    where a guard would be violated.

    Equal axes share a Dim, and expressions of several symbols are Dims of their own.
    """
    plan = graph.plan
    changing = {str(e): e for leaf in plan.inputs for e in leaf.shape if e.symbols}
    limits = {text: limits_of(plan, expression) for text, expression in changing.items()}
    if graph.fixed_axes:
        return {}
    for text, (low, high) in graph.ranges.items():
        least, most = limits.get(text, (None, None))
        if low > (least or 2) or high != most:
            return {}
    dims = {
        text: sympy.Symbol(f"dim_{number}", integer=True) for number, text in enumerate(changing)
    }
    axes = {
        (graph.names[leaf.path], axis.dim): dims.get(str(e), e.value)
        for leaf in plan.inputs
        for axis, e in leaf.axes
    }
    proofs = SizeProofs(_lows(dims, limits))
    guards = [decision for decision in decisions if decision.guarded]
    guards += _of_layouts(graph)
    return limits if all(proofs.always(in_sizes(guard, axes)) for guard in guards) else {}


def _of_layouts(graph: Graph) -> Iterator[Decision]:
    """The decisions of torch alone about the layouts of tensors that are computed: none of their sizes
    is 1.
    """
    for node in nodes_of(graph.artifact):
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or is_contiguous_or_false(value):
            continue
        for size in value.shape:
            if isinstance(size, torch.SymInt) and not size.node.expr.is_Symbol:
                sides = size.node.expr, sympy.Integer(1)
                sources = sources_of(size.node.shape_env, sides[0].free_symbols)
                if len(sources) == len(sides[0].free_symbols):
                    yield Decision(sympy.Ne, sides, True, sources, False, True, "")


def with_bounds(named: Mapping[str, Range], plan: Plan) -> dict[str, Range]:
    """The named expressions with the greatest sizes that bounds of the model leave to symbols."""
    highs = {symbol.name: symbol.high for symbol in plan.symbols if symbol.limit}
    return {text: (low, highs.get(text, high)) for text, (low, high) in named.items()}


def _lows(dims: Mapping[str, sympy.Symbol], limits: Mapping[str, Range]) -> dict[str, int]:
    """torch starts a Dim without a bound at 2, as far as its guards are concerned."""
    return {symbol.name: limits[text][0] or 2 for text, symbol in dims.items()}
