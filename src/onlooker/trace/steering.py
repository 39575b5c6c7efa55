"""Ints that steer the Python of a model: one graph for each value that was seen.

An int that varies is a dynamic input of a graph. Where it chooses a path (``for _ in range(steps)``,
``x[:, -keep:] if keep else x``) torch refuses that, or bakes in the one value of its example. The plan is then asked
for with the int as a constant, once per value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ..core.call import Call
from ..core.path import Path
from ..core.plan import LeafPlan, Plan
from ..core.spec import Axis, ConstantSpec
from ..infer.name import label_of
from .graph import Graph

__all__ = ["at_call", "baked_ints", "per_value", "steering_ints"]

_MOST_VALUES = 4


def steering_ints(plan: Plan) -> tuple[LeafPlan, ...]:
    """The ints that vary, and that no tensor has as a size."""
    shown = {name for leaf in plan.inputs for e in leaf.shape for name in e.symbols}
    ints = (leaf for leaf in plan.inputs if leaf.value is not None and leaf.value.symbols)
    return tuple(leaf for leaf in ints if leaf.value is not None and shown.isdisjoint(leaf.value.symbols))


def baked_ints(graph: Graph) -> tuple[LeafPlan, ...]:
    """The ints of a plan that torch made a constant, at a value that it was given as an example."""
    leaves = steering_ints(graph.plan)
    return tuple(leaf for leaf in leaves if graph.obtained.get(str(Axis(leaf.path, None)), "").isdigit())


def per_value(plan: Plan, leaves: Sequence[LeafPlan], calls: Iterable[Call]) -> list[Plan]:
    """The plan with these ints as constants, once for each of the values that most calls had, at most a handful."""
    groups: dict[tuple[int, ...], list[Call]] = {}
    for call in calls:
        if call.index in plan.calls:
            groups.setdefault(tuple(_value(leaf, call) for leaf in leaves), []).append(call)
    ordered = sorted(groups.items(), key=lambda group: -sum(call.count for call in group[1]))
    kept, rest = ordered[:_MOST_VALUES], ordered[_MOST_VALUES:]
    names = ", ".join(str(leaf.path) for leaf in leaves)
    more = f"; {_listed(rest)} was seen too, and is one graph too many" if rest else ""
    blind = f"only {names} = {_listed(kept)} served: each value takes its own way through the model{more}"
    plan = replace(plan, blind=(*plan.blind, blind))
    return [_at(plan, leaves, values, group) for values, group in kept]


def _listed(groups: Iterable[tuple[tuple[int, ...], Sequence[Call]]]) -> str:
    return " or ".join(", ".join(map(str, values)) for values, _ in groups)


def at_call(plan: Plan, leaves: Sequence[LeafPlan], call: Call) -> Plan:
    """The plan with these ints as one call has them."""
    return _at(plan, leaves, tuple(_value(leaf, call) for leaf in leaves), [call])


def _value(leaf: LeafPlan, call: Call) -> int:
    """The int of a call; one that it lacks is as its fill."""
    spec = dict(call.inputs.items()).get(leaf.path)
    if isinstance(spec, ConstantSpec) and isinstance(spec.value, int):
        return spec.value
    return leaf.fill.value if leaf.fill is not None else 0


def _at(plan: Plan, leaves: Sequence[LeafPlan], values: Sequence[int], calls: Sequence[Call]) -> Plan:
    fixed = dict(zip((leaf.path for leaf in leaves), values, strict=True))
    kept = tuple(_constant(leaf, fixed[leaf.path], len(calls)) if leaf.path in fixed else leaf for leaf in plan.leaves)
    shown = {name for leaf in kept if not leaf.is_constant for _, e in leaf.axes for name in e.symbols}
    relations = (r for r in plan.relations if r.left.path not in fixed and shown.issuperset(r.right.symbols))
    note = ", ".join(f"{path} is always {value}" for path, value in fixed.items())
    return replace(
        plan,
        name=f"{plan.name}_{_named(fixed)}",
        leaves=kept,
        symbols=tuple(symbol for symbol in plan.symbols if symbol.name in shown),
        relations=tuple(relations),
        calls=tuple(sorted(call.index for call in calls)),
        notes=(*plan.notes, f"{note} here: what steers the Python of the model is a constant of a graph"),
    )


def _constant(leaf: LeafPlan, value: int, calls: int) -> LeafPlan:
    """The int as a constant; a call may lack it where its fill is that constant."""
    optional = leaf.fill is not None and leaf.fill.value == value
    return LeafPlan(leaf.path, constant=ConstantSpec(value), calls=calls, optional=optional)


def _named(fixed: Mapping[Path, int]) -> str:
    words = (f"{label_of(path)}_{str(value).replace('-', 'minus_')}" for path, value in fixed.items())
    return re.sub(r"\W", "_", "_".join(words))
