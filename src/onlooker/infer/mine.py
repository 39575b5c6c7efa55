"""Runs the families of relations over a table and keeps what holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..core.expression import Expression
from ..core.plan import Evidence
from ..core.spec import Axis
from .relations import FAMILIES, Column, evidence, group_equal
from .samples import Table

__all__ = ["Derived", "Mined", "mine"]


@dataclass(frozen=True, slots=True)
class Derived:
    """A class of axes that is an expression of others."""

    column: Column
    expression: Expression
    family: str
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class Mined:
    """The classes of axes that change, and which of them follow from the others."""

    columns: tuple[Column, ...]
    derived: Mapping[str, Derived]
    labels: tuple[str, ...]

    @property
    def free(self) -> tuple[Column, ...]:
        """The classes that follow from no others: the symbols."""
        return tuple(column for column in self.columns if column.name not in self.derived)

    def of(self, axis: Axis) -> Expression | None:
        """The expression of an axis in the names of the free classes; None where it never changed."""
        for column in self.columns:
            if axis in column.axes:
                derived = self.derived.get(column.name)
                return derived.expression if derived else Expression.symbol(column.name)
        return None


def mine(table: Table) -> Mined:
    """The relations of a table: equal axes form a class, and a class may follow from others.

    The families are tried in their order, on the largest classes first. What a class follows from may itself
    follow from others; in the end every expression is one of free classes.
    """
    columns = group_equal(table)
    labels = tuple(row.label for row in table.rows)
    derived: dict[str, Derived] = {}
    for family in FAMILIES:
        for target in sorted(columns, key=_greatest, reverse=True):
            if target.name in derived:
                continue
            others = [c for c in columns if target.name not in _origins(c.name, derived)]
            proposal = next(iter(family.propose(target, others)), None)
            if proposal is not None:
                sides = [target, *(c for c in columns if c.name in proposal.symbols)]
                derived[target.name] = Derived(target, proposal, family.name, evidence(labels, *sides))
    return Mined(columns, {name: _resolved(found, derived) for name, found in derived.items()}, labels)


def _origins(name: str, derived: Mapping[str, Derived]) -> set[str]:
    """The class itself and all classes that it follows from."""
    found = derived.get(name)
    below = set() if found is None else set().union(*(_origins(s, derived) for s in found.expression.symbols))
    return {name} | below


def _resolved(found: Derived, derived: Mapping[str, Derived]) -> Derived:
    """The same relation, spelled in free classes."""
    expression = found.expression
    while any(symbol in derived for symbol in expression.symbols):
        expression = expression.replaced({s: derived[s].expression for s in expression.symbols if s in derived})
    return replace(found, expression=expression)


def _greatest(column: Column) -> int:
    return max((v for v in column.values if v is not None), default=0)
