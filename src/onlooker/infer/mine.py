"""Runs the families of relations over a table and keeps what holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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

    The families are tried in their order. A class that others follow from stays free, so that every
    expression is one of free classes.
    """
    columns = group_equal(table)
    labels = tuple(row.label for row in table.rows)
    derived: dict[str, Derived] = {}
    used: set[str] = set()
    for family in FAMILIES:
        for target in sorted(columns, key=_greatest, reverse=True):
            if target.name in derived or target.name in used:
                continue
            others = [c for c in columns if c.name not in derived and c is not target]
            proposal = next(iter(family.propose(target, others)), None)
            if proposal is not None:
                sides = [target, *(c for c in columns if c.name in proposal.symbols)]
                derived[target.name] = Derived(target, proposal, family.name, evidence(labels, *sides))
                used.update(proposal.symbols)
    return Mined(columns, derived, labels)


def _greatest(column: Column) -> int:
    return max((v for v in column.values if v is not None), default=0)
