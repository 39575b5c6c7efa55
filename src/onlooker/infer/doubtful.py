"""Relations of a table that may hold by chance, and readings of the table without each of them.

An example: two calls had ``ids`` of 6 and of 9 columns, and ``bias`` with as many numbers. That two lengths agree
twice is little evidence, and so ``bias.shape[0] == ids.shape[1]`` is doubtful: the model is asked
(:mod:`onlooker.hypotheses.broken_relation`). Had four calls with four lengths agreed, it would not be. The keys of
all layers of a cache grow together, and are never taken apart, however few the calls are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from ..core.path import Attr, Index, Key, Path
from ..core.spec import Axis
from .demands import DEMANDED
from .mine import BEYOND_DOUBT, Derived, Exclusions, Mined, mine
from .relations import Column
from .samples import Table

__all__ = [
    "DoubtfulRelation",
    "alternatives",
    "argument_of",
    "doubtful_relations",
    "readings_without",
]

#: classes of axes that have as few sizes in calls as these may be two classes that agree by chance
_FEW_ROWS = 3
_MOST_PARTS = 6
#: a dict of more tensors is a state, such as a cache
_FEW_PARTS = 8
#: a tensor in an argument: the name of the argument, and a number, a key or an attribute
_IN_AN_ARGUMENT = 2
_MOST_READINGS = 5
_MOST_GUESSES = 8


@dataclass(frozen=True, slots=True)
class DoubtfulRelation:
    """One relation: ``moved`` axes are tied to ``kept`` ones, and are given another size alone.

    ``kept`` is empty for a class that is an expression of others; ``text`` says the relation. It ``is_within``
    tensors where each of them has both sides, as a length that was four times the batch.
    """

    moved: tuple[Axis, ...]
    kept: tuple[Axis, ...]
    text: str
    exclusions: Exclusions
    is_within: bool = False


def doubtful_relations(mined: Mined, variadic: Collection[str] = ()) -> Iterator[DoubtfulRelation]:
    """The relations that may hold by chance: expressions of other classes, then equal axes of
    several arguments. ``variadic`` are the names of ``*args`` and ``**kwargs``.

    The leaves of one container, such as the layers of a cache, are one state, and are never taken
    apart. Tensors of a plain list that differ in a size, as images do, are no such state, and neither
    are the few ones of a dict, such as a batch from a tokenizer, or of ``*args``: each stands for
    itself. The sizes of an object that has its tensors as attributes may still be related by chance.
    """
    apart = _with_own_parts(mined, variadic)
    for derived in mined.derived.values():
        column = derived.column
        sources = [source for source in mined.columns if source.name in derived.proposed.symbols]
        is_sure = derived.family == DEMANDED
        if is_sure or _distinct_in_calls(mined, column, *sources) >= BEYOND_DOUBT:
            continue
        places = {_place(axis, apart) for found in (column, *sources) for axis in found.axes}
        is_shallow = any(len(axis.path.entries) <= _IN_AN_ARGUMENT for axis in column.axes)
        if len(places) > 1 or is_shallow or not _is_inside(column.axes[0], apart):
            text = f"{column.axes[0]} == {_spelled(derived, sources)}"
            exclusions = Exclusions(free=_held(mined, column))
            beside = {axis.path for source in sources for axis in source.axes}
            is_within = all(axis.path in beside for axis in column.axes)
            yield DoubtfulRelation(column.axes, (), text, exclusions, is_within)
    for column in mined.columns:
        if _distinct_in_calls(mined, column) >= BEYOND_DOUBT:
            continue
        for part in _parts(column, mined.n_calls, apart):
            yield _doubtful_equality(mined, column, part, apart)


def _doubtful_equality(
    mined: Mined, column: Column, part: tuple[Axis, ...], apart: frozenset[str]
) -> DoubtfulRelation:
    """The claim that a part of a class has the same size as the rest."""
    rest = tuple(axis for axis in column.axes if axis not in part)
    free = _held(mined, column) - {column.axes[0]} | {part[0]}
    first_in_place = {_place(axis, apart): axis for axis in reversed(part)}
    moved = ", ".join(str(axis) for axis in part if axis in first_in_place.values())
    exclusions = Exclusions(apart=frozenset(part), free=free)
    return DoubtfulRelation(part, rest, f"{moved} == {rest[0]}", exclusions)


def alternatives(table: Table) -> Iterator[Exclusions]:
    """Other ways to read a table whose relations the model refuses, the likeliest first.

    Each relation between classes is excluded alone, then all of them: the next best takes its
    place. Then relations of little evidence are read too, all that fit and each alone.
    """
    mined = mine(table).derived.values()
    found = [_as_denied(derived) for derived in mined if derived.family != DEMANDED]
    for relation in found:
        yield Exclusions(denied=frozenset((relation,)))
    if len(found) > 1:
        yield Exclusions(denied=frozenset(found))
    denied: frozenset[tuple[Axis, str]] = frozenset()
    for _ in range(_MOST_GUESSES):
        guess = Exclusions(denied=denied, guessing=True)
        fresh = {_as_denied(derived) for derived in mine(table, guess).derived.values()} - set(
            found
        )
        if not fresh:
            return
        yield guess
        if len(fresh) > 1:
            for relation in sorted(fresh, key=str):
                yield replace(guess, denied=denied | (fresh - {relation}))
        denied |= fresh


def readings_without(table: Table, doubt: DoubtfulRelation) -> Iterator[Exclusions]:
    """The table without a relation: the sizes that followed from the class may follow from either part, or
    from others, and the part that is kept may be free.
    """
    yield doubt.exclusions
    mined = mine(table, doubt.exclusions)
    touched = {
        mined.class_of[axis].name for axis in (*doubt.moved, *doubt.kept) if axis in mined.class_of
    }
    denied = [
        _as_denied(derived)
        for derived in mined.derived.values()
        if touched & set(derived.proposed.symbols)
    ]
    choices = [denied] if denied else []
    if len(denied) > 1:
        choices += [[relation] for relation in denied]
    kept = [
        _as_denied(derived)
        for derived in mined.derived.values()
        if derived.family != DEMANDED and set(doubt.kept) & set(derived.column.axes)
    ]
    if kept:
        choices.insert(0, kept)
    for choice in choices[: _MOST_READINGS - 1]:
        yield replace(doubt.exclusions, denied=frozenset(choice))


def _as_denied(derived: Derived) -> tuple[Axis, str]:
    """The relation as :class:`Exclusions` names it."""
    return derived.column.axes[0], str(derived.proposed)


def _held(mined: Mined, column: Column) -> frozenset[Axis]:
    """The class, and what it follows from: none of them may be explained by another one of them."""
    names = {column.name}
    if column.name in mined.derived:
        names |= set(mined.derived[column.name].expression.symbols)
    return frozenset(c.axes[0] for c in mined.columns if c.name in names)


def _distinct_in_calls(mined: Mined, *columns: Column) -> int:
    """The number of distinct sizes that calls had. Sizes of experiments were chosen to obey the
    relation.
    """
    rows = zip(*(column.values[: mined.n_calls] for column in columns), strict=True)
    return len({sizes for sizes in rows if None not in sizes})


def _spelled(derived: Derived, sources: Sequence[Column]) -> str:
    text = str(derived.proposed)
    for column in sorted(sources, key=lambda column: -len(column.name)):
        text = text.replace(column.name, str(column.axes[0]))
    return text


def _with_own_parts(mined: Mined, variadic: Collection[str]) -> frozenset[str]:
    """The arguments whose tensors each stand for themselves: plain lists of which two tensors differed
    in a size in some call, dicts of few tensors, and as few arguments of ``*args``.
    """
    parts: dict[str, set[Path]] = {}
    for axis in mined.class_of:
        if _is_part(axis, Key) or (axis.path.root in variadic and _is_part(axis, Index)):
            parts.setdefault(axis.path.root, set()).add(axis.path)
    few = {root for root, paths in parts.items() if len(paths) <= _FEW_PARTS}
    return _lists_of_unlike(mined) | few


def _lists_of_unlike(mined: Mined) -> frozenset[str]:
    """The arguments that are plain lists of tensors, of which two differed in a size in some call."""
    columns: dict[tuple[str, int | None], list[Column]] = {}
    for axis, column in mined.class_of.items():
        if _is_part(axis, Index):
            columns.setdefault((axis.path.root, axis.dim), []).append(column)
    found = set()
    for (root, _), alike in columns.items():
        calls = zip(*(column.values[: mined.n_calls] for column in alike), strict=True)
        if any(len(set(sizes) - {None}) > 1 for sizes in calls):
            found.add(root)
    return frozenset(found)


def argument_of(axis: Axis) -> str:
    """The argument that an axis belongs to; a named tensor of a dict or an object counts as one, as in
    a batch from a tokenizer.
    """
    is_named = _is_part(axis, Attr) or _is_part(axis, Key)
    return str(axis.path) if is_named else axis.path.root


def _is_part(axis: Axis, kind: type[Attr] | type[Index] | type[Key]) -> bool:
    """True for a tensor that stands in an argument itself, by such a step."""
    entries = axis.path.entries
    return len(entries) == _IN_AN_ARGUMENT and isinstance(entries[-1], kind)


def _is_inside(axis: Axis, apart: frozenset[str]) -> bool:
    return len(axis.path.entries) > 1 and axis.path.root not in apart


def _place(axis: Axis, apart: frozenset[str]) -> tuple[str, int | None]:
    """Returns the place that is taken apart as a whole: a container, or one dimension of a tensor."""
    if _is_inside(axis, apart):
        return (axis.path.root, -1)
    return (str(axis.path), axis.dim)


def _parts(column: Column, n_calls: int, apart: frozenset[str]) -> Iterator[tuple[Axis, ...]]:
    """Yields the axes that may part from a class: first dimensions, one place, or two places where
    few rows hold it together.
    """
    places: dict[tuple[str, int | None], list[Axis]] = {}
    for axis in column.axes:
        places.setdefault(_place(axis, apart), []).append(axis)
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
