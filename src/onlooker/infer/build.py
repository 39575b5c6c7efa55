"""Union and table -> Plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from ..core.path import Entry, Path
from ..core.plan import Evidence, Fill, LeafPlan, Note, Plan, Range, Relation, Symbol
from ..core.sizes.expression import Expression
from ..core.spec import Axis, ConstantSpec, Spec, TensorSpec
from .mine import Exclusions, Mined, mine
from .name import Given, names_of
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
    notes: tuple[Note | str, ...] = (),
    ranges: Mapping[str, Range] | None = None,
    confirmed: Mapping[Axis, str] | None = None,
    exclusions: Exclusions | None = None,
    given: Given | None = None,
) -> Plan:
    """The plan of one graph: every leaf of the union with its expressions, relations and evidence.

    ``confirmed`` has the label of the probe that the model refused when an axis was not as its
    relation says. ``given`` gives the names that the user has for axes.
    """
    fills = {**_counters(union, fills), **fills}
    mined = mine(table) if exclusions is None else mine(table, exclusions)
    names = names_of(mined) if given is None else names_of(mined, given)
    spelled = _Spelled(mined, names, table)
    counts = _counts(union)
    leaves = tuple(
        _leaf(path, spec, spelled, fills.get(path), counts[path])
        for path, spec in union.leaves.items()
    )
    leaves = tuple(_with_floats(leaf, union) for leaf in leaves)
    calls = tuple(sorted(call.index for form in union.forms for call in form.calls))
    return Plan(
        name,
        union.structure,
        leaves,
        tuple(_symbol(column, names[column.name], mined, ranges or {}) for column in mined.free),
        tuple(_relations(mined, names, confirmed or {})),
        calls,
        notes,
    )


def _counters(union: Union, fills: Mapping[Path, Fill]) -> dict[Path, Fill]:
    """Returns the count that a container stands for where it is absent: the count that it had where
    its tensors were not there yet.

    An empty layer of a sliding window has no tensors and a count of 0. An absent cache is an empty
    one, and lacks both.
    """
    empty: dict[tuple[Entry, ...], list[Path]] = {}
    for path, fill in fills.items():
        if fill.kind == "empty":
            empty.setdefault(path.entries[:-1], []).append(path)
    found: dict[Path, Fill] = {}
    for path, spec in union.leaves.items():
        beside = empty.get(path.entries[:-1], ())
        if (
            len(path.entries) < 2
            or not beside
            or not isinstance(spec, ConstantSpec)
            or not spec.is_int
        ):
            continue
        values = {
            call.inputs.leaves[position].value  # type: ignore[union-attr]
            for form in union.forms
            if not any(other in form.leaves for other in beside)
            for position, leaf in enumerate(form.leaves)
            if leaf == path
            for call in form.calls
        }
        if len(values) == 1:
            found[path] = Fill("constant", value=int(values.pop()))  # type: ignore[arg-type]
    return found


def _counts(union: Union) -> dict[Path, int]:
    """Counts the calls that have each leaf."""
    counts = dict.fromkeys(union.leaves, 0)
    for form in union.forms:
        for path in form.leaves:
            if path in counts:
                counts[path] += len(form.calls)
    return counts


class _Spelled:
    """The expressions of axes in the names of the plan, each class spelled once."""

    def __init__(self, mined: Mined, names: Mapping[str, str], table: Table) -> None:
        self._table = table
        self._classes = {
            axis: expression
            for column in mined.columns
            for expression in (_expression_of(column, mined).renamed(names),)
            for axis in column.axes
        }
        self._constants: dict[int, Expression] = {}

    def class_of(self, axis: Axis) -> Expression | None:
        """The expression of an axis that changes."""
        return self._classes.get(axis)

    def size(self, axis: Axis, example: int) -> Expression:
        """The expression of any axis; ``example`` is its size where no row has it."""
        found = self._classes.get(axis)
        if found is not None:
            return found
        size = next((value for value in self._table.column(axis) if value is not None), example)
        return self._constants.setdefault(size, Expression.constant(size))


def _expression_of(column: Column, mined: Mined) -> Expression:
    derived = mined.derived.get(column.name)
    return derived.expression if derived else Expression.symbol(column.name)


def _leaf(path: Path, spec: Spec, spelled: _Spelled, fill: Fill | None, calls: int) -> LeafPlan:
    if isinstance(spec, TensorSpec):
        shape = tuple(spelled.size(Axis(path, dim), n) for dim, n in enumerate(spec.shape))
        return LeafPlan(path, spec.dtype, spec.device, shape, fill=fill, calls=calls)
    if isinstance(spec, ConstantSpec):
        found = spelled.class_of(Axis(path, None)) if spec.is_int else None
        if found is not None:
            return LeafPlan(path, value=found, fill=fill, calls=calls)
        return LeafPlan(path, constant=spec, fill=fill, calls=calls)
    return LeafPlan(path, fill=fill, calls=calls, opaque=spec)


def _with_floats(leaf: LeafPlan, union: Union) -> LeafPlan:
    """The leaf as an input where it is a float that changes."""
    floats = union.floats.get(leaf.path, ())
    if leaf.constant is None or not leaf.constant.is_float or len(floats) < 2:
        return leaf
    return replace(leaf, constant=None, floats=floats)


def _symbol(column: Column, name: str, mined: Mined, ranges: Mapping[str, Range]) -> Symbol:
    values = tuple(sorted({v for v in column.values if v is not None}))
    low, high = ranges.get(name, (None, None))
    if low is None:
        low = 0 if 0 in values else 1
    return Symbol(
        name,
        values,
        low,
        high,
        step_of(column, of_few=mined.is_divided(column)),
        evidence(mined.labels, column),
    )


def _relations(
    mined: Mined, names: Mapping[str, str], confirmed: Mapping[Axis, str]
) -> Iterator[Relation]:
    for column in mined.columns:
        first, name = column.axes[0], Expression.symbol(names[column.name])
        found = evidence(mined.labels, column)
        for axis in column.axes[1:]:
            yield Relation(axis, name, "equal", _with(found, confirmed.get(axis)))
        if (derived := mined.derived.get(column.name)) is not None:
            sides = _with(derived.evidence, confirmed.get(first))
            yield Relation(first, derived.expression.renamed(names), derived.family, sides)
        elif (step := step_of(column, of_few=mined.is_divided(column))) > 1:
            yield Relation(first, Expression.constant(step), "divisible", found)


def _with(found: Evidence, label: str | None) -> Evidence:
    return found if label is None else replace(found, rows=(*found.rows, label))
