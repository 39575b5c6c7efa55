"""A class of axes that are always equal, and the rows that classes share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...core.plan import Evidence
from ...core.spec import Axis

__all__ = ["Column", "evidence", "shared"]


@dataclass(frozen=True, slots=True)
class Column:
    """A class of axes that are always equal: a name for the time of mining, and their sizes row
    by row.
    """

    name: str
    axes: tuple[Axis, ...]
    values: tuple[int | None, ...]

    @property
    def is_first(self) -> bool:
        """True for a class that is mostly first dimensions: a batch is no sum and no offset of
        lengths.
        """
        return 2 * sum(axis.dim == 0 for axis in self.axes) > len(self.axes)


def shared(*columns: Column) -> list[tuple[int, ...]]:
    """The rows that all columns have."""
    rows = zip(*(column.values for column in columns), strict=True)
    if not any(None in column.values for column in columns):
        return list(rows)  # the usual case, in one step: there may be 100,000 calls
    return [tuple(v for v in row if v is not None) for row in rows if None not in row]


def evidence(labels: Sequence[str], *columns: Column) -> Evidence:
    """The rows that hold all columns, and the number of distinct ones among them."""
    held = tuple(labels)
    if any(None in column.values for column in columns):
        held = tuple(
            label for i, label in enumerate(labels) if all(c.values[i] is not None for c in columns)
        )
    return Evidence(held, len(set(shared(*columns))))
