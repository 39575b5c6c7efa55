"""Sizes that torch bakes into a graph: a graph with the sizes of a call as constants serves at least such calls.

``int(tokens ** 0.5)`` of a size that changes is, in a trace, the number that it has in the example of the export, and a
guard holds every call to it. The example has general sizes, which no call had: the graph then serves none of them. The
sizes in such a guard are asked for as a call had them, and all others may change as before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import SYMPY_INTERP

from ..core.expression import Expression
from ..core.plan import LeafPlan, Plan
from ..infer.sizes import Sizes
from ..materialise.arguments import dtype_of
from .graph import Graph

__all__ = ["at_sizes", "baked_symbols", "is_narrower", "sized", "violated"]

_SOURCE = re.compile(r"L\['(\w+)'\](?:\.size\(\)\[(\d+)\])?")


def sized(leaf: LeafPlan, sizes: Sizes) -> Any:
    """What a guard sees of an input: a shape, or an int; no guard is about a float."""
    if leaf.is_float:
        return torch.empty((), dtype=torch.float64, device="meta")
    if leaf.value is not None:
        return leaf.value.evaluate(sizes)
    shape = [expression.evaluate(sizes) for expression in leaf.shape]
    return torch.empty(shape, dtype=dtype_of(leaf.dtype), device="meta")


def violated(codes: Iterable[Any], inputs: Mapping[str, Any]) -> frozenset[int]:
    """The guards that do not hold; torch itself evaluates these texts, which it has written, in this way."""
    scope = {**SYMPY_INTERP, "L": inputs}
    return frozenset(i for i, code in enumerate(codes) if not _holds(code, scope))


def _holds(code: Any, scope: dict[str, Any]) -> bool:
    try:
        return bool(eval(code, scope))
    except ArithmeticError:  # a guard that divides by a size, for a size of 0
        return False


def baked_symbols(graphs: Iterable[Graph], plan: Plan, sizes: Sizes) -> Iterator[frozenset[str]]:
    """The symbols in the guards by which the graphs of a plan refuse some sizes: without first axes, then with them."""
    found = frozenset[str]()
    for graph in graphs:
        if graph.plan.inputs == plan.inputs:
            found |= _guarding(graph, sizes)
    rows = {name for leaf in plan.inputs for axis, e in leaf.axes if axis.dim == 0 for name in e.symbols}
    ways = dict.fromkeys((found - rows, found))
    yield from (way for way in ways if way)


def _guarding(graph: Graph, sizes: Sizes) -> frozenset[str]:
    plan, names = graph.plan, graph.names
    guards = [str(text).strip() for text in graph.artifact._guards_code]
    codes = [compile(text, "<guard of torch>", "eval") for text in guards]
    failing = violated(codes, {names[leaf.path]: sized(leaf, sizes) for leaf in plan.inputs})
    axes = {(names[leaf.path], axis.dim): e for leaf in plan.inputs for axis, e in leaf.axes}
    sources = [source for number in failing for source in _SOURCE.findall(guards[number])]
    found = (axes.get((name, int(dim) if dim else None)) for name, dim in sources)
    return frozenset(name for e in found if e is not None for name in e.symbols)


def is_narrower(plan: Plan, other: Plan) -> bool:
    """True for a plan of the same inputs with fewer symbols."""
    paths = [[leaf.path for leaf in one.inputs] for one in (plan, other)]
    return paths[0] == paths[1] and len(plan.symbols) < len(other.symbols)


def at_sizes(plan: Plan, fixed: Mapping[str, int], call: int) -> Plan:
    """The plan with some of its symbols as constants, as one call has them."""
    values = {name: Expression.constant(size) for name, size in fixed.items()}
    leaves = tuple(_at(leaf, values) for leaf in plan.leaves)
    kept = tuple(symbol for symbol in plan.symbols if symbol.name not in fixed)
    names, relations = {symbol.name for symbol in kept}, []
    constant = {axis for leaf in leaves if not leaf.is_constant for axis, e in leaf.axes if e.is_constant}
    for relation in plan.relations:
        if relation.left not in constant and names.issuperset(relation.right.symbols):
            relations.append(relation)
    text = ", ".join(f"{name} = {size}" for name, size in fixed.items())
    blind = f"only {text} served: torch cannot keep open what the model computes from it"
    return replace(
        plan,
        leaves=leaves,
        symbols=kept,
        relations=tuple(relations),
        calls=(call,),
        blind=tuple(dict.fromkeys((*plan.blind, blind))),
    )


def _at(leaf: LeafPlan, values: Mapping[str, Expression]) -> LeafPlan:
    shape = tuple(expression.replaced(values) for expression in leaf.shape)
    value = None if leaf.value is None else leaf.value.replaced(values)
    return replace(leaf, shape=shape, value=value, calls=min(leaf.calls, 1))
