"""Binds graphs to sizes for which a runtime that computes floats in 32 bits makes the ints that Python makes.

``int(n * 0.58)`` is 28 in Python where n is 50, as the product is 28.999999999999996, and 29 in floats of 32 bits.
OpenVINO computes all floats so. Its graphs leave out such sizes: each int that is made of a float and one size is
computed both ways, for all sizes up to a million. An int that is made of an argument could be any: such a graph is
refused.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy
import torch
from torch.fx import Node

from ..core.contract import Constraint, Origin
from ..core.runtimes import RUNTIMES
from ..model_source.lines import place_of_node
from ..proofs.exported_sizes import sizes_in_plan
from ..trace.graph import Graph
from .fixed_ranks import with_constraints

__all__ = ["int_of_an_argument", "of_single_floats"]

#: sizes below this one are tried, and as many of them are left out one by one
_TRIED, _MOST = 2**20, 4
_INTS: dict[Any, Callable[[Any], Any]] = {
    math.ceil: numpy.ceil,
    math.floor: numpy.floor,
    math.trunc: numpy.trunc,
}
_NUMBERS = frozenset(
    (operator.add, operator.mul, operator.neg, operator.pow, operator.sub, operator.truediv)
)


def of_single_floats(graphs: Iterable[Graph], target: str) -> list[Graph]:
    """The graphs of torch, whose contracts leave out the sizes at which a target makes other ints of floats."""
    if not RUNTIMES[target].narrows_numbers:
        return list(graphs)
    return [with_constraints(graph, tuple(_constraints(graph, target))) for graph in graphs]


def int_of_an_argument(graph: torch.fx.Graph) -> Node | None:
    """The int of a graph that is made of a float argument; None where there is none."""
    return next((one for one in graph.nodes if one.target in _INTS and _has_argument(one)), None)


def _has_argument(number: Node) -> bool:
    """True for a number that is computed of a float argument, which is a tensor of one element in a graph."""
    if not isinstance(number.meta.get("val"), (torch.SymFloat, torch.SymInt)):
        return False
    given = number.all_input_nodes
    is_item = isinstance(number.meta["val"], torch.SymFloat) and len(given) == 1
    return (is_item and given[0].op == "placeholder") or any(map(_has_argument, given))


def _constraints(graph: Graph, target: str) -> Iterator[Constraint]:
    in_plan = sizes_in_plan(graph.artifact, graph.plan, graph.names)
    known = set[str]()
    for node in graph.artifact.graph.nodes:
        size = node.meta.get("val")
        if node.target not in _INTS or not isinstance(size, torch.SymInt):
            continue
        symbols = list(size.node.expr.free_symbols)
        if len(symbols) != 1 or symbols[0] not in in_plan:
            continue
        for formula in _formulas(node, symbols[0], str(in_plan[symbols[0]])):
            if formula not in known:
                known.add(formula)
                reason = f"{target} computes floats in 32 bits, and an int of such a float is another one there"
                yield Constraint(formula, Origin.RUNTIME, place_of_node(node), reason)


def _formulas(made: Node, symbol: Any, name: str) -> Iterator[str]:
    """The sizes that have to be left out for an int that is made of a float: the first ones, and all beyond."""
    sizes = numpy.arange(_TRIED)
    with numpy.errstate(all="ignore"):
        wide, narrow = (
            _value(made, symbol, sizes, kind) for kind in (numpy.float64, numpy.float32)
        )
    if wide is None or narrow is None:
        return
    others = numpy.flatnonzero(wide != narrow)[: _MOST + 1].tolist()
    yield from (f"{name} != {size}" for size in others[:_MOST])
    yield from (f"{name} < {size}" for size in others[_MOST:])


def _value(given: Any, symbol: Any, sizes: Any, kind: Any) -> Any:
    """The value of a number of a graph for all sizes, with floats of a kind; None where an operator is another one."""
    if not isinstance(given, Node):
        return kind(given) if isinstance(given, float) else given
    size = given.meta.get("val")
    if isinstance(size, torch.SymInt) and size.node.expr == symbol:
        return sizes
    function: Any = given.target
    if not (function in _INTS or function in _NUMBERS or function is torch.sym_float):
        return None
    values = [_value(one, symbol, sizes, kind) for one in given.args]
    if any(value is None for value in values) or given.kwargs:
        return None
    if function is torch.sym_float:
        return kind(values[0])
    if function in _INTS:
        return _INTS[function](values[0]).astype(numpy.int64)
    if function is operator.truediv:
        values = list(map(kind, values))
    return function(*values)
