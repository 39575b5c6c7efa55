"""input_ids (2, 7), (3, 9); position_ids (2, 7), (3, 9) -> one class of axes for 2, 3 and one
for 7, 9.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ...core.spec import Axis
from ..samples import Cells, Table
from .base import Column

__all__ = ["group_equal", "varies"]


def varies(values: Sequence[int | None]) -> bool:
    """True when a column has two distinct sizes."""
    return len({v for v in values if v is not None}) > 1


def group_equal(table: Table, apart: Collection[Axis] = ()) -> tuple[Column, ...]:
    """The classes of axes that change together, in the order of their first axes.

    Two axes that change are equal when they agree on every row that holds both and have two
    distinct sizes there. An axis that some rows lack, and that did not change where it is, joins a
    class of the same dimension that it agrees with: a mask seen with one batch has the batch of the
    ids beside it. A size of 1 counts for a batch only: the one head of a cache is no sequence
    because each step has one token. Axes that stand ``apart`` share no class with others.
    """
    alike: dict[tuple[bool, Cells], list[Axis]] = {}
    for axis, cells in table.columns.items():
        alike.setdefault((axis in apart, cells), []).append(axis)
    changing, still = list[_Group](), list[tuple[bool, Cells, list[Axis]]]()
    for (is_apart, cells), axes in alike.items():
        if varies(cells):
            changing.append(_Group(is_apart, cells, axes))
        elif None in cells:
            still.append((is_apart, cells, axes))
    groups = _merged(changing)
    dims = [{axis.dim for axis in group.axes} for group in groups]
    for is_apart, cells, axes in still:
        for axis in axes:
            lonely = axis.dim is None or (axis.dim != 0 and set(cells) <= {None, 1})
            for group, own in zip(groups, dims, strict=True) if not lonely else ():
                if axis.dim in own and group.apart is is_apart and _agree(cells, group.cells, 1):
                    group.add([axis], cells)
                    break
    position = {axis: i for i, axis in enumerate(table.columns)}
    for group in groups:
        group.axes.sort(key=position.__getitem__)
    groups.sort(key=lambda group: position[group.axes[0]])
    return tuple(Column(f"s{i}", tuple(group.axes), group.cells) for i, group in enumerate(groups))


@dataclass(slots=True)
class _Group:
    """Axes that are one class so far, and the sizes that they have together."""

    apart: bool
    cells: Cells
    axes: list[Axis]

    def add(self, axes: Sequence[Axis], cells: Cells) -> None:
        """Takes in more axes, whose sizes agree, with the rows that only these have."""
        self.axes += axes
        self.cells = tuple(
            a if a is not None else b for a, b in zip(self.cells, cells, strict=True)
        )


def _merged(groups: Sequence[_Group]) -> list[_Group]:
    """Groups that agree, until none do: two may never meet but both meet a third."""
    merged: list[_Group] = []
    gaps: list[
        _Group
    ] = []  # those that lack rows: two that have all rows are different, or were one from the start
    for group in groups:
        own = None in group.cells
        for other in merged if own else gaps:
            if group.apart is other.apart and _agree(group.cells, other.cells, 2):
                other.add(group.axes, group.cells)
                break
        else:
            merged.append(group)
            gaps += [group] if own else []
    return merged if len(merged) == len(groups) else _merged(merged)


def _agree(left: Cells, right: Cells, distinct: int) -> bool:
    """True when two classes have the same sizes where they meet, and ``distinct`` ones of them."""
    met = set()
    for a, b in zip(left, right, strict=True):
        if a is not None and b is not None:
            if a != b:
                return False
            met.add(a)
    return len(met) >= distinct
