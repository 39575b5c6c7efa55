"""Plans for tests that need no recording."""

from __future__ import annotations

from collections.abc import Iterable

from onlooker.core.path import Name, Path
from onlooker.core.plan import LeafPlan, Plan, Symbol
from onlooker.core.sizes.expression import Expression
from onlooker.core.structure import Structure


def plan_with(symbols: Iterable[Symbol], *more: Expression, static: Iterable[int] = ()) -> Plan:
    """A plan with an input per symbol, and one for all other expressions."""
    symbols = tuple(symbols)
    shapes = [(Expression.symbol(s.name),) for s in symbols] + [(*more, *map(Expression.constant, static))]
    leaves = tuple(LeafPlan(Path((Name(f"x{i}"),)), "torch.float32", "cpu", shape) for i, shape in enumerate(shapes))
    return Plan("main", Structure(), leaves, symbols)
