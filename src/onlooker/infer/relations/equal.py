"""input_ids (2, 7), (3, 9); position_ids (2, 7), (3, 9) -> one class of axes for 2, 3 and one for 7, 9."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...core.spec import Axis
from ..samples import Table
from .base import Column

__all__ = ["group_equal", "varies"]


def varies(values: Sequence[int | None]) -> bool:
    """True when a column has two distinct sizes."""
    return len({v for v in values if v is not None}) > 1


def group_equal(table: Table) -> tuple[Column, ...]:
    """The classes of axes that change together, in the order of their first axes.

    Two axes that change are equal when they agree on every row that holds both and have two distinct sizes
    there. An axis that some rows lack, and that did not change where it is, joins a class of the same
    dimension that it agrees with: a mask seen with one batch has the batch of the ids beside it. A size of 1
    counts for a batch only: the one head of a cache is no sequence because each step has one token.
    """
    columns = {axis: table.column(axis) for axis in table.axes}
    groups: list[list[Axis]] = []
    for axis in table.axes:
        if varies(columns[axis]):
            for group in groups:
                if _agree(columns[axis], _joined([columns[other] for other in group]), 2):
                    group.append(axis)
                    break
            else:
                groups.append([axis])
    groups = _merged(groups, columns)
    for axis in table.axes:
        lonely = axis.dim != 0 and set(columns[axis]) <= {None, 1}
        if not varies(columns[axis]) and None in columns[axis] and not lonely:
            for group in groups:
                same = [other for other in group if other.dim == axis.dim]
                if axis.dim is not None and same and _agree(columns[axis], _joined([columns[o] for o in group]), 1):
                    group.append(axis)
                    break
    return tuple(
        Column(f"s{i}", tuple(group), _joined([columns[axis] for axis in group])) for i, group in enumerate(groups)
    )


def _merged(groups: list[list[Axis]], columns: Mapping[Axis, Sequence[int | None]]) -> list[list[Axis]]:
    """Groups that agree once each has taken all its axes: two may never meet but both meet a third."""
    merged: list[list[Axis]] = []
    for group in groups:
        for other in merged:
            joined = [_joined([columns[axis] for axis in side]) for side in (group, other)]
            if _agree(joined[0], joined[1], 2):
                other.extend(group)
                break
        else:
            merged.append(group)
    return merged if len(merged) == len(groups) else _merged(merged, columns)


def _agree(left: Sequence[int | None], right: Sequence[int | None], distinct: int) -> bool:
    pairs = {(a, b) for a, b in zip(left, right, strict=True) if a is not None and b is not None}
    return len(pairs) >= distinct and all(a == b for a, b in pairs)


def _joined(columns: Sequence[Sequence[int | None]]) -> tuple[int | None, ...]:
    return tuple(next((v for v in row if v is not None), None) for row in zip(*columns, strict=True))
