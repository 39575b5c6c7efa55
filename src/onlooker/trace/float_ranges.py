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
from sympy.core.relational import Relational

from ..core.float_range import FloatRange
from ..core.path import Path
from ..core.plan import LeafPlan
from .graph import Graph

__all__ = ["with_float_ranges"]


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
    if not isinstance(question, Relational):
        return None
    held = question if answer else question.negated
    if held.lhs.is_number:
        held = held.reversed
    if (-held.lhs).is_symbol:
        held = held.reversedsign
    if not (held.lhs.is_symbol and held.rhs.is_number):
        return None
    kind, bound = type(held), float(held.rhs)
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
    bounded = replace(leaf, between=between)
    floats = tuple(spec for spec in leaf.floats if bounded.takes_float(spec.value))
    return replace(bounded, floats=floats or leaf.floats)
