"""Plans with some symbols as numbers.

torch takes a size of 0 or 1 for a number, and specializes what it cannot keep open
(``int(tokens ** 0.5)``). Such sizes are asked for as numbers, and all others may change as before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..core.plan import LeafPlan, Plan
from ..core.sizes.expression import Expression, Sizes

__all__ = ["at_single_sizes", "at_sizes", "is_narrower"]


def is_narrower(plan: Plan, other: Plan) -> bool:
    """True for a plan of the same inputs with fewer symbols."""
    paths = [[leaf.path for leaf in one.inputs] for one in (plan, other)]
    return paths[0] == paths[1] and len(plan.symbols) < len(other.symbols)


def at_single_sizes(plan: Plan) -> Plan:
    """The plan with the symbols as numbers whose range is one size."""
    single = {symbol.name: symbol.low for symbol in plan.symbols if symbol.low == symbol.high}
    return at_sizes(plan, single) if single else plan


def at_sizes(plan: Plan, fixed: Sizes) -> Plan:
    """The plan with some of its symbols as numbers; an input that is an int stays an input."""
    values = {name: Expression.constant(size) for name, size in fixed.items()}
    leaves = tuple(_at(leaf, values) for leaf in plan.leaves)
    kept = tuple(symbol for symbol in plan.symbols if symbol.name not in fixed)
    names = {symbol.name for symbol in kept}
    constant = {
        axis for leaf in leaves if not leaf.is_constant for axis, e in leaf.axes if e.is_constant
    }
    relations = tuple(
        relation
        for relation in plan.relations
        if relation.left not in constant and names.issuperset(relation.right.symbols)
    )
    return replace(plan, leaves=leaves, symbols=kept, relations=relations)


def _at(leaf: LeafPlan, values: Mapping[str, Expression]) -> LeafPlan:
    shape = tuple(expression.replaced(values) for expression in leaf.shape)
    value = None if leaf.value is None else leaf.value.replaced(values)
    return replace(leaf, shape=shape, value=value)
