"""Which relations of a table may hold by chance, and how the table reads without each of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from ..core.spec import Axis
from .mine import Derived, Mined, Without, mine
from .relations import Column
from .samples import Table

__all__ = ["Doubt", "denials", "doubts", "readings"]

#: classes of axes that have as few sizes in calls as these may be two classes that agree by chance
_FEW_ROWS = 3
#: a relation that held for as many distinct sizes in calls is no chance
_BEYOND_DOUBT = 4
_MOST_PARTS = 6
_MOST_READINGS = 5
_MOST_GUESSES = 8


@dataclass(frozen=True, slots=True)
class Doubt:
    """One relation: ``moved`` axes are tied to ``kept`` ones, and are given another size alone.

    ``kept`` is empty for a class that is an expression of others; ``text`` says the relation.
    """

    moved: tuple[Axis, ...]
    kept: tuple[Axis, ...]
    text: str
    without: Without


def doubts(mined: Mined) -> Iterator[Doubt]:
    """The relations that may hold by chance: expressions of other classes, then equal axes of several arguments.

    What stands inside one container, as the layers of a cache, is one state, and is never taken apart.
    """
    for derived in mined.derived.values():
        sources = [c for c in mined.columns if c.name in derived.proposed.symbols]
        if _seen(mined, derived.column, *sources) >= _BEYOND_DOUBT:
            continue
        places = {_place(axis) for column in (derived.column, *sources) for axis in column.axes}
        if len(places) > 1 or not _is_inside(derived.column.axes[0]):
            text = f"{derived.column.axes[0]} == {_spelled(derived, sources)}"
            yield Doubt(derived.column.axes, (), text, Without(free=_held(mined, derived.column)))
    for column in mined.columns:
        if _seen(mined, column) >= _BEYOND_DOUBT:
            continue
        for part in _parts(column, mined.n_calls):
            rest = tuple(axis for axis in column.axes if axis not in part)
            without = Without(apart=frozenset(part), free=_held(mined, column) - {column.axes[0]} | {part[0]})
            first = {_place(axis): axis for axis in reversed(part)}
            moved = ", ".join(str(axis) for axis in part if axis in first.values())
            yield Doubt(part, rest, f"{moved} == {rest[0]}", without)


def denials(table: Table) -> Iterator[Without]:
    """Other readings of a table whose relations the model refuses, the likeliest first.

    Without one relation between classes each, then without all, the next best takes its place; then with relations
    of little evidence, all that fit and each alone.
    """
    found = [_denial(derived) for derived in mine(table).derived.values()]
    for denial in found:
        yield Without(denied=frozenset((denial,)))
    if len(found) > 1:
        yield Without(denied=frozenset(found))
    denied: frozenset[tuple[Axis, str]] = frozenset()
    for _ in range(_MOST_GUESSES):
        guess = Without(denied=denied, guessing=True)
        fresh = {_denial(d) for d in mine(table, guess).derived.values()} - set(found)
        if not fresh:
            return
        yield guess
        if len(fresh) > 1:
            yield from (replace(guess, denied=denied | (fresh - {one})) for one in sorted(fresh, key=str))
        denied |= fresh


def readings(table: Table, doubt: Doubt) -> Iterator[Without]:
    """The table without a relation; what followed from the class may follow from either part, or from others."""
    yield doubt.without
    mined = mine(table, doubt.without)
    touched = {mined.class_of[axis].name for axis in (*doubt.moved, *doubt.kept) if axis in mined.class_of}
    denied = [_denial(d) for d in mined.derived.values() if touched & set(d.proposed.symbols)]
    choices = [denied, *([denial] for denial in denied)] if len(denied) > 1 else [denied] if denied else []
    for choice in choices[: _MOST_READINGS - 1]:
        yield replace(doubt.without, denied=frozenset(choice))


def _denial(derived: Derived) -> tuple[Axis, str]:
    return derived.column.axes[0], str(derived.proposed)


def _held(mined: Mined, column: Column) -> frozenset[Axis]:
    """The class, and what it follows from: none of them may be explained by another one of them."""
    names = {column.name}
    if column.name in mined.derived:
        names |= set(mined.derived[column.name].expression.symbols)
    return frozenset(c.axes[0] for c in mined.columns if c.name in names)


def _seen(mined: Mined, *columns: Column) -> int:
    """The number of distinct sizes that calls had; what probes had was chosen to obey the relation."""
    rows = zip(*(column.values[: mined.n_calls] for column in columns), strict=True)
    return len({sizes for sizes in rows if None not in sizes})


def _spelled(derived: Derived, sources: Sequence[Column]) -> str:
    text = str(derived.proposed)
    for column in sorted(sources, key=lambda column: -len(column.name)):
        text = text.replace(column.name, str(column.axes[0]))
    return text


def _is_inside(axis: Axis) -> bool:
    return len(axis.path.entries) > 1


def _place(axis: Axis) -> tuple[str, int | None]:
    """What is taken apart as a whole: a container, or one dimension of a tensor."""
    return (axis.path.root, -1 if _is_inside(axis) else axis.dim)


def _parts(column: Column, n_calls: int) -> Iterator[tuple[Axis, ...]]:
    """What may part from a class: first dimensions, one place, or two places where few rows hold it together."""
    places: dict[tuple[str, int | None], list[Axis]] = {}
    for axis in column.axes:
        places.setdefault(_place(axis), []).append(axis)
    groups = [tuple(axes) for axes in places.values()]
    if len(groups) < 2:
        return
    first = [axes for axes in groups if axes[0].dim == 0]
    if 1 < len(first) < len(groups):
        yield tuple(axis for axes in first for axis in axes)
    yield from groups if len(groups) > 2 else groups[1:]
    seen = {size for size in column.values[:n_calls] if size is not None}
    if 3 < len(groups) <= _MOST_PARTS and len(seen) <= _FEW_ROWS:
        for one, two in combinations(groups, 2):
            if len(groups) > 4 or groups[0] not in (one, two):
                yield one + two
