"""The ranges of floats that are inputs, where a trace compared them with numbers.

``if guidance > 1:`` decides by a float. The trace takes the side of the call, and the graph asserts it
(:mod:`onlooker.repairs.numbers.by_values`). Where each such decision compares one argument with a number,
the plan of the graph says which floats it takes, so that a call of another one is refused before the graph
runs, or goes to a graph of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import sympy

from ..core.float_range import FloatRange
from ..core.path import Path
from ..core.plan import LeafPlan
from ..core.spec import ConstantSpec
from .graph import Graph

__all__ = ["with_float_ranges"]

#: what a comparison of a float with a number is where it does not hold
_OTHERWISE: dict[Any, Any] = {
    sympy.Gt: sympy.Le,
    sympy.Ge: sympy.Lt,
    sympy.Lt: sympy.Ge,
    sympy.Le: sympy.Gt,
    sympy.Eq: sympy.Ne,
    sympy.Ne: sympy.Eq,
}
#: what a comparison is from the other side
_MIRRORED: dict[Any, Any] = {
    sympy.Gt: sympy.Lt,
    sympy.Ge: sympy.Le,
    sympy.Lt: sympy.Gt,
    sympy.Le: sympy.Ge,
    sympy.Eq: sympy.Eq,
    sympy.Ne: sympy.Ne,
}


def with_float_ranges(
    graph: Graph, symbols: Mapping[Path, str], decisions: Iterable[tuple[Any, bool]]
) -> Graph:
    """The graph, in whose plan each float has the range in which all decisions by it are those of the trace; the
    graph itself where one of them is no comparison of such a float with a number.

    ``symbols`` are those of torch for the floats, ``decisions`` the questions and their answers.
    """
    paths = {symbol: path for path, symbol in symbols.items()}
    values = dict(zip((leaf.path for leaf in graph.plan.inputs), graph.example, strict=True))
    found: dict[Path, FloatRange] = {}
    for question, answer in decisions:
        names = {str(symbol) for symbol in question.free_symbols}
        if names.isdisjoint(paths):
            continue  # of a number that the graph computes: it asserts that alone
        path = paths.get(next(iter(names))) if len(names) == 1 else None
        one = None if path is None else _range_of(question, answer, float(values[path]))
        if path is None or one is None:
            return graph
        found[path] = one.within(found.get(path, FloatRange()))
    if not found:
        return graph
    leaves = (_within(leaf, found.get(leaf.path)) for leaf in graph.plan.leaves)
    return replace(graph, plan=replace(graph.plan, leaves=tuple(leaves)))


def _range_of(question: Any, answer: bool, value: float) -> FloatRange | None:
    """The range of a float, which has some value, in which a comparison with a number has an answer; None for
    another question.
    """
    kind = type(question) if answer else _OTHERWISE.get(type(question))
    if kind not in _OTHERWISE:
        return None
    left, right = question.args
    if left.is_number:
        left, right, kind = right, left, _MIRRORED[kind]
    if (-left).is_symbol:
        left, right, kind = -left, -right, _MIRRORED[kind]
    if not (left.is_symbol and right.is_number):
        return None
    bound = float(right)
    if kind is sympy.Eq:
        return FloatRange(bound, bound, has_low=True, has_high=True)
    if kind is sympy.Ne:
        return FloatRange(low=bound) if value > bound else FloatRange(high=bound)
    if kind in (sympy.Gt, sympy.Ge):
        return FloatRange(low=bound, has_low=kind is sympy.Ge)
    return FloatRange(high=bound, has_high=kind is sympy.Le)


def _within(leaf: LeafPlan, found: FloatRange | None) -> LeafPlan:
    """The input with a range, and with the floats of calls that are in it."""
    if found is None:
        return leaf
    between = found if leaf.between is None else found.within(leaf.between)
    floats = tuple(spec for spec in leaf.floats if _holds(between, spec))
    return replace(leaf, between=between, floats=floats or leaf.floats)


def _holds(between: FloatRange, spec: ConstantSpec) -> bool:
    return isinstance(spec.value, float) and between.holds(float(spec.value))
