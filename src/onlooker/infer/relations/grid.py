"""Classes of axes, found by their sizes: what a family looks for is looked up, not compared with
every class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import gcd

from .base import Column

__all__ = ["Grid", "Key", "Vector", "ascent", "direction", "itself"]

#: the sizes of a class in some rows
Vector = tuple[int, ...]
#: what two vectors have in common when they stand in a relation
Key = Callable[[Vector], Vector | None]


def itself(sizes: Vector) -> Vector:
    """Equal vectors."""
    return sizes


def ascent(sizes: Vector) -> Vector:
    """Returns how far a vector moves from where it starts: equal for ``a`` and ``a + 3``.

    >>> ascent((5, 8, 7)), ascent((8, 11, 10))
    ((0, 3, 2), (0, 3, 2))
    """
    return tuple(size - sizes[0] for size in sizes)


def direction(sizes: Vector) -> Vector | None:
    """A vector without its common factor: equal for ``a`` and ``4*a``; None for nothing but zeros.

    >>> direction((8, 12)), direction((0, 0))
    ((2, 3), None)
    """
    factor = gcd(*sizes)
    return tuple(size // factor for size in sizes) if factor else None


class Grid:
    """Some classes over the same rows, of which those are found that hold the sizes wanted in given
    rows.

    Classes that have the same rows share an index per question, so that a question about all
    classes is answered in one step per set of rows, whatever the number of classes. Equal rows
    count once.
    """

    def __init__(self, columns: Sequence[Column]) -> None:
        self.columns: tuple[Column, ...] = tuple(columns)
        self._cells: dict[str, tuple[int | None, ...]] = {}
        self._position: dict[str, int] = {}
        self._rows: dict[str, tuple[int, ...]] = {}
        #: the classes that have the same rows, by these rows
        self._groups: dict[tuple[int, ...], list[Column]] = {}
        kept = _distinct_rows(columns)
        for position, column in enumerate(columns):
            cells = tuple(column.values[row] for row in kept)
            rows = tuple(row for row, size in enumerate(cells) if size is not None)
            self._cells[column.name] = cells
            self._position[column.name] = position
            self._rows[column.name] = rows
            self._groups.setdefault(rows, []).append(column)
        self._indexes: dict[tuple[object, ...], dict[Vector, list[Column]]] = {}
        self._seen: dict[tuple[tuple[int, ...], int], set[int]] = {}
        self._common: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[int, ...]] = {}

    def position(self, column: Column) -> int:
        """The place of a class among all."""
        return self._position[column.name]

    def rows(self, *columns: Column) -> tuple[int, ...]:
        """The distinct rows that all these classes have."""
        found = self._rows[columns[0].name]
        for column in columns[1:]:
            found = self._meet(found, self._rows[column.name])
        return found

    def sizes(self, column: Column, rows: Sequence[int]) -> Vector:
        """The sizes of a class in rows that it has; ``rows`` ascend."""
        cells = self._cells[column.name]
        if len(rows) == len(cells):
            return cells  # type: ignore[return-value]  # the class has all of these rows
        return tuple(cells[row] for row in rows)  # type: ignore[misc]  # and these

    def groups(self, rows: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
        """The sets of rows that classes have, each with what it shares with ``rows``: two rows
        at least.
        """
        for own in self._groups:
            common = self._meet(rows, own)
            if len(common) > 1:
                yield own, common

    def has(self, own: tuple[int, ...], row: int, size: int) -> bool:
        """True when some class that has just the rows ``own`` has this size in one of them."""
        seen = self._seen.get((own, row))
        if seen is None:
            cells = (self._cells[column.name][row] for column in self._groups[own])
            seen = self._seen[own, row] = {size for size in cells if size is not None}
        return size in seen

    def size(self, column: Column, row: int) -> int:
        """The size of a class in a row that it has."""
        return self._cells[column.name][row]  # type: ignore[return-value]

    def find(
        self, own: tuple[int, ...], rows: tuple[int, ...], key: Key, vector: Vector
    ) -> Sequence[Column]:
        """The classes that have just the rows ``own``, and in ``rows`` sizes of this key."""
        return self._index(own, rows, key).get(vector, ())

    def partners(
        self, rows: tuple[int, ...], wanted: Callable[[tuple[int, ...]], Vector | None], key: Key
    ) -> Iterator[tuple[Column, tuple[int, ...]]]:
        """The classes whose sizes have the key ``wanted``, each with the rows out of ``rows`` that
        it has.

        ``wanted`` gives the key that is looked for in the rows that some classes have.
        """
        found: list[tuple[Column, tuple[int, ...]]] = []
        for own, common in self.groups(rows):
            vector = wanted(common)
            if vector is None:
                continue
            for column in self.find(own, common, key, vector):
                found.append((column, common))
        return iter(self.ordered(found))

    def ordered(
        self, found: list[tuple[Column, tuple[int, ...]]]
    ) -> list[tuple[Column, tuple[int, ...]]]:
        """Returns the relations that were found, in the order of the classes."""
        return (
            sorted(found, key=lambda pair: self._position[pair[0].name])
            if len(found) > 1
            else found
        )

    def _meet(self, left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
        if left == right:
            return left
        known = self._common.get((left, right))
        if known is None:
            inside = set(right)
            known = self._common[left, right] = tuple(row for row in left if row in inside)
        return known

    def _index(
        self, own: tuple[int, ...], rows: tuple[int, ...], key: Key
    ) -> dict[Vector, list[Column]]:
        known = self._indexes.get((own, rows, key))
        if known is None:
            known = self._indexes[own, rows, key] = {}
            for column in self._groups[own]:
                vector = key(self.sizes(column, rows))
                if vector is not None:
                    known.setdefault(vector, []).append(column)
        return known


def _distinct_rows(columns: Sequence[Column]) -> list[int]:
    """The first of each set of equal rows."""
    first: dict[tuple[int | None, ...], int] = {}
    for row, sizes in enumerate(zip(*(column.values for column in columns), strict=True)):
        first.setdefault(sizes, row)
    return list(first.values())
