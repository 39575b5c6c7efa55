"""Runs the families of relations over a table and keeps what holds.

An example: a prefill, a step and a further prompt with ``ids`` of shape (batch, n), a cache ``past`` and a
``mask``. Axes that agree in all calls are one class::

    class                       call 0   call 1   call 2
    ids 0, past 0, mask 0       2        2        3
    ids 1                       10       1        4
    past 1                      0        10       6
    mask 1                      10       11       10

The class with the largest sizes is asked first: ``mask 1`` is no other class and none plus a number, but
``ids 1 + past 1`` in every row. It follows from these two. No class may follow from one that follows from it, and
so the other three are free: they are the symbols of the plan.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from ..core.plan import Evidence
from ..core.sizes.expression import Expression
from ..core.spec import Axis
from .demands import DEMANDED, in_columns
from .relations import FAMILIES, GUESSES, Column, Grid, RelationFamily, evidence, group_equal
from .samples import Table

__all__ = ["BEYOND_DOUBT", "Derived", "Exclusions", "Mined", "mine"]

#: a relation that held for as many distinct sizes is no chance
BEYOND_DOUBT = 4


@dataclass(frozen=True, slots=True)
class Derived:
    """A class of axes that is an expression of others.

    ``proposed`` is the relation as its family found it; ``expression`` spells it in free classes.
    """

    column: Column
    expression: Expression
    family: str
    evidence: Evidence
    proposed: Expression


@dataclass(frozen=True, slots=True)
class Mined:
    """The classes of axes that change, and which of them follow from the others.

    The first ``n_calls`` rows of the table are calls, the others experiments. The axes that are
    ``divided`` have to be multiples of a number.
    """

    columns: tuple[Column, ...]
    derived: Mapping[str, Derived]
    labels: tuple[str, ...]
    class_of: Mapping[Axis, Column]
    n_calls: int
    divided: frozenset[Axis] = frozenset()

    def is_divided(self, column: Column) -> bool:
        """True for a class of which what divides two sizes is a step, however small."""
        return not self.divided.isdisjoint(column.axes)

    @property
    def free(self) -> tuple[Column, ...]:
        """The classes that follow from no others: the symbols."""
        return tuple(column for column in self.columns if column.name not in self.derived)


@dataclass(frozen=True, slots=True)
class Exclusions:
    """The relations that a reading of a table leaves out, to see what it says without them.

    Axes that stand ``apart`` are a class of their own, the classes of ``free`` axes follow from no
    others, and the relations ``denied`` (the first axis of a class, and its expression as it was
    proposed) are passed over. With ``guessing``, relations of little evidence are read too.
    """

    apart: frozenset[Axis] = frozenset()
    free: frozenset[Axis] = frozenset()
    denied: frozenset[tuple[Axis, str]] = frozenset()
    guessing: bool = False

    def holds_back(self, column: Column) -> bool:
        """True for a class that must not follow from others."""
        return bool(self.free) and not self.free.isdisjoint(column.axes)


_NONE = Exclusions()


def mine(table: Table, exclusions: Exclusions = _NONE) -> Mined:
    """The relations of a table: equal axes form a class, and a class may follow from others.

    What the model demands comes first. The families are tried in their order, on the largest
    classes first. The classes that a class follows from may follow from others themselves; in the end
    every expression is one of free classes.
    """
    columns = group_equal(table, exclusions.apart)
    grid = Grid(columns)
    by_name = {column.name: column for column in columns}
    derived: dict[str, Derived] = {}

    def known(target: Column, proposal: Expression, family: str) -> Derived:
        sides = [target, *(by_name[name] for name in proposal.symbols)]
        return Derived(target, proposal, family, evidence(table.labels, *sides), proposal)

    for target, demanded in in_columns(table.demands.relations, columns):
        if target.name not in derived and not _is_circular(target, demanded, derived):
            derived[target.name] = known(target, demanded, DEMANDED)
    for family in (*FAMILIES, *GUESSES) if exclusions.guessing else FAMILIES:
        for target in sorted(columns, key=_greatest, reverse=True):
            if target.name in derived or exclusions.holds_back(target):
                continue
            proposal = next(_allowed(family, target, grid, derived, exclusions.denied), None)
            found = None if proposal is None else known(target, proposal, family.name)
            if found is not None and not (
                table.demands.ties_none and found.evidence.distinct < BEYOND_DOUBT
            ):
                derived[target.name] = found
    resolved = {name: _resolved(found, derived) for name, found in derived.items()}
    class_of = {axis: column for column in columns for axis in column.axes}
    return Mined(columns, resolved, table.labels, class_of, table.n_calls, table.demands.divided)


def _allowed(
    family: RelationFamily,
    target: Column,
    grid: Grid,
    derived: Mapping[str, Derived],
    denied: Collection[tuple[Axis, str]],
) -> Iterator[Expression]:
    """The proposals for a class that do not follow from it themselves."""
    for proposal in family.propose(target, grid):
        circular = _is_circular(target, proposal, derived)
        if not circular and (not denied or (target.axes[0], str(proposal)) not in denied):
            yield proposal


def _is_circular(target: Column, proposal: Expression, derived: Mapping[str, Derived]) -> bool:
    return any(target.name in _origins(name, derived) for name in proposal.symbols)


def _origins(name: str, derived: Mapping[str, Derived]) -> set[str]:
    """The class itself and all classes that it follows from."""
    below, found = [name], {name}
    while below:
        known = derived.get(below.pop())
        fresh = set(known.expression.symbols) - found if known else set[str]()
        found |= fresh
        below += fresh
    return found


def _resolved(found: Derived, derived: Mapping[str, Derived]) -> Derived:
    """Returns the relation with free classes in the place of derived ones."""
    expression = found.expression
    while any(symbol in derived for symbol in expression.symbols):
        expression = expression.replaced(
            {s: derived[s].expression for s in expression.symbols if s in derived}
        )
    return replace(found, expression=expression)


def _greatest(column: Column) -> int:
    return max((v for v in column.values if v is not None), default=0)
