"""Union and table -> Plan."""

from __future__ import annotations

from collections.abc import Mapping

from ..core.expression import Expression
from ..core.path import Path
from ..core.plan import Evidence, Fill, LeafPlan, Plan, Relation, Symbol
from ..core.spec import Axis, ConstantSpec, Spec, TensorSpec
from .mine import Mined, mine
from .name import names_of
from .relations import Column, evidence, step_of
from .samples import Table
from .unify import Union

__all__ = ["build_plan"]


def build_plan(
    union: Union,
    table: Table,
    fills: Mapping[Path, Fill],
    *,
    name: str = "main",
    notes: tuple[str, ...] = (),
    ranges: Mapping[str, tuple[int, int | None]] | None = None,
) -> Plan:
    """The plan of a regime: every leaf of the union with its expressions, relations and evidence."""
    mined = mine(table)
    names = names_of(mined)
    counts = {path: sum(path in form.leaves for form in union.forms for _ in form.calls) for path in union.leaves}
    leaves = tuple(
        _leaf(path, spec, mined, names, table, fills.get(path), counts[path]) for path, spec in union.leaves.items()
    )
    calls = tuple(sorted(call.index for form in union.forms for call in form.calls))
    return Plan(
        name,
        union.structure,
        leaves,
        tuple(_symbol(column, names[column.name], mined, ranges or {}) for column in mined.free),
        _relations(mined, names),
        calls,
        notes,
    )


def _leaf(
    path: Path,
    spec: Spec,
    mined: Mined,
    names: Mapping[str, str],
    table: Table,
    fill: Fill | None,
    calls: int,
) -> LeafPlan:
    if isinstance(spec, TensorSpec):
        shape = tuple(_expression(Axis(path, dim), mined, names, table, n) for dim, n in enumerate(spec.shape))
        return LeafPlan(path, spec.dtype, spec.device, shape, fill=fill, calls=calls)
    if isinstance(spec, ConstantSpec):
        found = mined.of(Axis(path, None)) if spec.is_int else None
        if found is not None:
            return LeafPlan(path, value=found.renamed(names), fill=fill, calls=calls)
        return LeafPlan(path, constant=spec, fill=fill, calls=calls)
    return LeafPlan(path, fill=fill, calls=calls)


def _expression(axis: Axis, mined: Mined, names: Mapping[str, str], table: Table, example: int) -> Expression:
    found = mined.of(axis)
    if found is not None:
        return found.renamed(names)
    seen = [value for value in table.column(axis) if value is not None]
    return Expression.constant(seen[0] if seen else example)


def _symbol(column: Column, name: str, mined: Mined, ranges: Mapping[str, tuple[int, int | None]]) -> Symbol:
    values = tuple(sorted({v for v in column.values if v is not None}))
    low, high = ranges.get(name, (0 if 0 in values else 1, None))
    return Symbol(name, values, low, high, step_of(column), evidence(mined.labels, column))


def _relations(mined: Mined, names: Mapping[str, str]) -> tuple[Relation, ...]:
    relations = []
    for column in mined.columns:
        first, name = column.axes[0], Expression.symbol(names[column.name])
        for axis in column.axes[1:]:
            found = _evidence_of(mined, column)
            relations.append(Relation(axis, name, "equal", found))
        if (derived := mined.derived.get(column.name)) is not None:
            relations.append(Relation(first, derived.expression.renamed(names), derived.family, derived.evidence))
        elif (step := step_of(column)) > 1:
            relations.append(Relation(first, Expression.constant(step), "divisible", _evidence_of(mined, column)))
    return tuple(relations)


def _evidence_of(mined: Mined, column: Column) -> Evidence:
    return evidence(mined.labels, column)
