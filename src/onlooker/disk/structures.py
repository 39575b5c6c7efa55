"""The table of a document in which structures stand once, a child before what holds it."""

from __future__ import annotations

from typing import Any

from ..core.path import Attr, Entry, Index, Key, Name
from ..core.structure import LEAF, Structure
from .text import Fault, NotWritten, read_constant, read_nested, write_nested

__all__ = ["KnownStructures", "WrittenStructures"]

_MOST_NODES = 1_000_000
_DEEPEST = 64
#: the steps of a path: the class, the attribute that each has, and its type
_ENTRIES: dict[str, tuple[Any, str, type]] = {
    "name": (Name, "name", str),
    "attr": (Attr, "name", str),
    "key": (Key, "key", object),
    "index": (Index, "index", int),
}


class KnownStructures:
    """The structures of a document that is read."""

    def __init__(self, rows: Any) -> None:
        self._structures: list[Structure] = []
        self._nodes: list[int] = []
        self._depths: list[int] = []
        self._leaves: list[int] = []
        if not isinstance(rows, list):
            raise Fault("a list is wanted here")
        for number, row in enumerate(rows):
            try:
                self._add(row)
            except Fault as fault:
                raise fault.inside(f"[{number}]") from None

    def structure(self, number: Any) -> Structure:
        """The structure of a number."""
        if type(number) is not int or not 0 <= number < len(self._structures):
            raise Fault("the number of a structure is wanted here")
        return self._structures[number]

    def check_leaves(self, number: int, leaves: list[Any]) -> None:
        """Passes for as many leaves as the structure of this number has."""
        wanted = self._leaves[number]
        if len(leaves) != wanted:
            raise Fault(f"{wanted} leaves are wanted here, and there are {len(leaves)}")

    def _add(self, row: Any) -> None:
        is_row = isinstance(row, list) and len(row) == 4
        if not is_row or not isinstance(row[2], list) or not isinstance(row[3], list):
            raise Fault("a kind, a context, entries and children are wanted here")
        kind, context = read_constant(row[0]), read_constant(row[1])
        if type(kind) is not str or type(context) is not str:
            raise Fault("a kind and a context are texts")
        entries = tuple(map(_entry, row[2]))
        children = tuple(map(self.structure, row[3]))
        if len(entries) != len(children) or (kind == LEAF and children):
            raise Fault("every child has one entry, and a leaf has none")
        nodes = 1 + sum(self._nodes[child] for child in row[3])
        depth = 1 + max((self._depths[child] for child in row[3]), default=0)
        if nodes > _MOST_NODES or depth > _DEEPEST:
            raise Fault("it is larger, or deeper, than arguments are")
        leaves = 1 if kind == LEAF else sum(self._leaves[child] for child in row[3])
        self._structures.append(Structure(kind, entries, children, context))
        self._nodes.append(nodes)
        self._depths.append(depth)
        self._leaves.append(leaves)


def _entry(data: Any) -> Entry:
    if isinstance(data, dict) and len(data) == 1:
        ((kind, content),) = data.items()
        if kind in _ENTRIES:
            cls, _, wanted = _ENTRIES[kind]
            value = read_nested(content)
            if wanted is object or type(value) is wanted:
                made: Entry = cls(value)
                return made
    raise Fault("a step of a path is wanted here")


class WrittenStructures:
    """The structures of a document that is written; ``rows`` is its table."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self._known: dict[Structure, int] = {}
        self._seen: dict[int, tuple[Structure, int]] = {}

    def number(self, value: Structure) -> int:
        """The number of a structure in the table.

        :raises NotWritten: for a key that JSON cannot hold
        """
        seen = self._seen.get(id(value))
        if seen is not None:
            return seen[1]
        number = self._known.get(value)
        if number is None:
            children = [self.number(child) for child in value.children]
            entries = [_written_entry(entry) for entry in value.entries]
            context = write_nested(value.context)
            self.rows.append([write_nested(value.kind), context, entries, children])
            number = self._known[value] = len(self.rows) - 1
        self._seen[id(value)] = (value, number)
        return number


def _written_entry(entry: Entry) -> dict[str, Any]:
    for kind, (cls, attribute, _) in _ENTRIES.items():
        if isinstance(entry, cls):
            return {kind: write_nested(getattr(entry, attribute))}
    raise NotWritten(entry)
