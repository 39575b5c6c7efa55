"""Ints and floats that steer the Python of a model: one graph for each value that was seen.

An int or a float that varies is an input of a graph. Where it chooses a path
(``for _ in range(steps)``, ``x[:, -keep:] if keep else x``, ``x * t if t > 0 else x``) torch
refuses that, or specializes to the one value of its example. The plan is then asked for with the number
as a constant, once per value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ..core.call import Call
from ..core.drawing.alike import first_few
from ..core.path import Path, label_of
from ..core.plan import LeafPlan, Plan
from ..core.spec import Axis, ConstantSpec, Spec
from ..trace.graph import Graph

__all__ = [
    "at_call",
    "control_flow_ints",
    "control_flow_numbers",
    "input_floats",
    "per_value",
    "specialized_ints",
]

_MOST_VALUES = 12
#: how many of the values that are not served are named
_MOST_LISTED = 6


def input_floats(plan: Plan) -> tuple[LeafPlan, ...]:
    """The floats that vary."""
    return tuple(leaf for leaf in plan.inputs if leaf.is_float)


def control_flow_numbers(plan: Plan) -> tuple[LeafPlan, ...]:
    """The ints and floats that may choose a path: those that vary, and that no tensor has as a
    size.
    """
    return (*control_flow_ints(plan), *input_floats(plan))


def control_flow_ints(plan: Plan) -> tuple[LeafPlan, ...]:
    """The ints that vary, and that no tensor has as a size."""
    shown = {name for leaf in plan.inputs if leaf.is_tensor for name in leaf.symbols}
    ints = (leaf for leaf in plan.inputs if leaf.value is not None and leaf.symbols)
    return tuple(leaf for leaf in ints if shown.isdisjoint(leaf.symbols))


def specialized_ints(graph: Graph) -> tuple[LeafPlan, ...]:
    """The ints of a plan that torch made a constant, at a value that it was given as an example."""
    leaves = control_flow_ints(graph.plan)
    return tuple(leaf for leaf in leaves if graph.fixed_size(Axis(leaf.path, None)) is not None)


def per_value(plan: Plan, leaves: Sequence[LeafPlan], calls: Iterable[Call]) -> list[Plan]:
    """The plan with these numbers as constants, once for each of the values that most calls had,
    at most a handful.
    """
    own = set(plan.calls)
    groups: dict[tuple[ConstantSpec, ...], list[Call]] = {}
    for call in calls:
        if call.index in own:
            groups.setdefault(_values(leaves, call), []).append(call)
    ordered = sorted(groups.items(), key=lambda group: -sum(call.count for call in group[1]))
    kept, rest = ordered[:_MOST_VALUES], ordered[_MOST_VALUES:]
    names = ", ".join(str(leaf.path) for leaf in leaves)
    verb = (
        "was seen too, and is one graph too many"
        if len(rest) == 1
        else "were seen too, and are graphs too many"
    )
    more = f"; {_listed(rest)} {verb}" if rest else ""
    blind = (
        f"only {names} = {_listed(kept)} served: each value takes its own way through the"
        f" model{more}"
    )
    plan = replace(plan, blind=(*plan.blind, blind))
    return [_at(plan, leaves, values, group) for values, group in kept]


def _listed(groups: Sequence[tuple[tuple[ConstantSpec, ...], Sequence[Call]]]) -> str:
    texts = [", ".join(map(str, values)) for values, _ in groups]
    return " or ".join(first_few(texts, _MOST_LISTED))


def at_call(plan: Plan, leaves: Sequence[LeafPlan], call: Call) -> Plan:
    """The plan with these numbers as one call has them."""
    return _at(plan, leaves, _values(leaves, call), [call])


def _values(leaves: Sequence[LeafPlan], call: Call) -> tuple[ConstantSpec, ...]:
    """The numbers of a call; an int that it lacks is as its fill, a float as one of other calls."""
    own = dict(call.inputs.items())
    return tuple(_value(leaf, own.get(leaf.path)) for leaf in leaves)


def _value(leaf: LeafPlan, spec: Spec | None) -> ConstantSpec:
    if leaf.is_float:
        return spec if isinstance(spec, ConstantSpec) and spec.is_float else leaf.floats[0]
    if isinstance(spec, ConstantSpec) and isinstance(spec.value, int):
        return ConstantSpec(int(spec.value))
    return ConstantSpec(leaf.fill.value if leaf.fill is not None else 0)


def _at(
    plan: Plan, leaves: Sequence[LeafPlan], values: Sequence[ConstantSpec], calls: Sequence[Call]
) -> Plan:
    fixed = dict(zip((leaf.path for leaf in leaves), values, strict=True))
    kept = tuple(
        _constant(leaf, fixed[leaf.path], len(calls)) if leaf.path in fixed else leaf
        for leaf in plan.leaves
    )
    shown = {name for leaf in kept for name in leaf.symbols}
    relations = (
        r for r in plan.relations if r.left.path not in fixed and shown.issuperset(r.right.symbols)
    )
    note = ", ".join(f"{path} is always {value}" for path, value in fixed.items())
    return replace(
        plan,
        name=f"{plan.name}_{_named(fixed)}",
        leaves=kept,
        symbols=tuple(symbol for symbol in plan.symbols if symbol.name in shown),
        relations=tuple(relations),
        calls=tuple(sorted(call.index for call in calls)),
        notes=(
            *plan.notes,
            f"{note} here: what steers the Python of the model is a constant of a graph",
        ),
    )


def _constant(leaf: LeafPlan, value: ConstantSpec, calls: int) -> LeafPlan:
    """The number as a constant; a call may lack it where its fill is that constant."""
    optional = leaf.fill is not None and ConstantSpec(leaf.fill.value) == value
    return LeafPlan(leaf.path, constant=value, calls=calls, optional=optional)


def _named(fixed: Mapping[Path, ConstantSpec]) -> str:
    words = (
        f"{label_of(path)}_{str(value.value).replace('-', 'minus_')}"
        for path, value in fixed.items()
    )
    return re.sub(r"\W", "_", "_".join(words))
