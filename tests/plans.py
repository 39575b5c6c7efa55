"""Plans for tests that need no recording, and what mining says of an axis."""

from __future__ import annotations

from collections.abc import Iterable

from onlooker.core.path import Name, Path
from onlooker.core.plan import LeafPlan, Plan, Symbol
from onlooker.core.sizes.expression import Expression
from onlooker.core.spec import Axis
from onlooker.core.structure import Structure
from onlooker.infer.mine import Mined


def plan_with(symbols: Iterable[Symbol], *more: Expression, static: Iterable[int] = ()) -> Plan:
    """A plan with an input per symbol, and one for all other expressions."""
    symbols = tuple(symbols)
    shapes = [(Expression.symbol(s.name),) for s in symbols] + [(*more, *map(Expression.constant, static))]
    leaves = tuple(LeafPlan(Path((Name(f"x{i}"),)), "torch.float32", "cpu", shape) for i, shape in enumerate(shapes))
    return Plan("main", Structure(), leaves, symbols)


def expression_of(mined: Mined, axis: Axis) -> Expression | None:
    """The expression of an axis in the names of the free classes; None where it never changed."""
    column = mined.class_of.get(axis)
    if column is None:
        return None
    derived = mined.derived.get(column.name)
    return derived.expression if derived else Expression.symbol(column.name)
