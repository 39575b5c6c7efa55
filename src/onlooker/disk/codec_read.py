"""JSON -> values of ``core``: every node is checked, and the place of a fault is named."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from enum import Enum
from typing import Any

from ..core.errors import OnlookerError
from ..core.expression import Expression
from ..core.path import Entry
from ..core.structure import LEAF, Structure
from .codec_types import ENTRIES, SCALARS, class_of, fields_of, is_tagged, members_of
from .text import damaged, read_constant

__all__ = ["Decoder"]

_MOST_NODES = 1_000_000
_DEEPEST = 64
_LONGEST = 2000


class Decoder:
    """Reads values; ``structures`` is the table of the document, ``where`` the name of the file."""

    def __init__(self, structures: Any, where: str) -> None:
        self._structures: list[Structure] = []
        self._sizes: list[tuple[int, int]] = []
        if not isinstance(structures, list):
            raise damaged(f"{where} at structures", "a list is wanted here")
        for number, row in enumerate(structures):
            self._read_structure(row, f"{where} at structures[{number}]")

    def decode(self, declared: Any, data: Any, where: str) -> Any:
        """The value of the type ``declared``.

        :raises SavedFileError: ``file-damaged``
        """
        if declared is Any:
            return self._constant(data, where)
        members = members_of(declared)
        if data is None and type(None) in members:
            return None
        if is_tagged(declared):
            return self._tagged(members, data, where)
        scalars = tuple(member for member in members if member in SCALARS)
        others = [member for member in members if member not in SCALARS]
        if scalars and (not others or not (isinstance(data, (dict, list)) or _is_plain(others[0]))):
            return self._scalar(scalars, data, where)
        return self._one(others[0], data, where)

    def _one(self, declared: Any, data: Any, where: str) -> Any:
        cls = class_of(declared)
        if cls is Structure:
            return self._structure(data, where)
        if cls is Expression:
            return _expression(data, where)
        if cls is tuple:
            return self._items(declared, data, where)
        if isinstance(cls, type) and issubclass(cls, Mapping):
            return self._mapping(declared, data, where)
        if isinstance(cls, type) and issubclass(cls, Enum):
            return _enum(cls, data, where)
        return self._dataclass(declared, data, where)

    def _constant(self, data: Any, where: str) -> Any:
        if isinstance(data, dict) and set(data) == {"tuple"} and isinstance(data["tuple"], list):
            if where.count("(") > _DEEPEST:
                raise damaged(where, "it is nested too deeply")
            return tuple(
                self._constant(child, f"{where}({i})") for i, child in enumerate(data["tuple"])
            )
        return read_constant(data, where)

    def _scalar(self, kinds: tuple[Any, ...], data: Any, where: str) -> Any:
        value = read_constant(data, where)
        wide = (*kinds, int) if float in kinds else kinds
        plain = next((cls for cls in SCALARS if type(value) is cls), None)
        derived = plain is None and len(kinds) > 2 and isinstance(value, kinds)
        if plain not in wide and not derived:
            raise damaged(
                where, f"{_named(kinds)} is wanted here, and there is {_named((type(value),))}"
            )
        return value

    def _items(self, declared: Any, data: Any, where: str) -> tuple[Any, ...]:
        inside = typing.get_args(declared)
        if not isinstance(data, list) or (inside[-1] is not Ellipsis and len(data) != len(inside)):
            raise damaged(
                where,
                "a list is wanted here" if inside[-1] is Ellipsis else f"{len(inside)} are wanted",
            )
        kinds = [inside[0]] * len(data) if inside[-1] is Ellipsis else inside
        return tuple(
            self.decode(kind, row, f"{where}[{i}]")
            for i, (kind, row) in enumerate(zip(kinds, data, strict=True))
        )

    def _mapping(self, declared: Any, data: Any, where: str) -> dict[Any, Any]:
        pair: Any = types.GenericAlias(tuple, typing.get_args(declared))
        if not isinstance(data, list):
            raise damaged(where, "a list of pairs is wanted here")
        pairs = [self._items(pair, row, f"{where}[{i}]") for i, row in enumerate(data)]
        found = dict(pairs)
        if len(found) != len(pairs):
            raise damaged(where, "a key stands twice")
        return found

    def _tagged(self, members: tuple[Any, ...], data: Any, where: str) -> Any:
        kind = data.get("is") if isinstance(data, dict) else None
        for member in members:
            if class_of(member).__name__ == kind:
                return self._dataclass(member, {k: v for k, v in data.items() if k != "is"}, where)
        raise damaged(where, f"one of {_named(members)} is wanted here")

    def _dataclass(self, declared: Any, data: Any, where: str) -> Any:
        fields = fields_of(declared)
        cls = class_of(declared)
        if not isinstance(data, dict):
            raise damaged(where, f"a {cls.__name__} is wanted here")
        unknown = set(data) - {f.name for f in fields}
        missing = [f.name for f in fields if f.required and f.name not in data]
        if unknown or missing:
            raise damaged(
                where,
                (
                    f"a {cls.__name__} has no {min(unknown)[:80]!r}"
                    if unknown
                    else f"{missing[0]} is missing"
                ),
            )
        values = {
            f.name: self.decode(f.declared, data[f.name], f"{where}.{f.name}")
            for f in fields
            if f.name in data
        }
        try:
            made = cls(**values)
        except (TypeError, ValueError, OnlookerError) as error:
            raise damaged(where, f"it makes no {cls.__name__} ({error})") from error
        self._check(made, where)
        return made

    def _check(self, made: Any, where: str) -> None:
        """What the types of the fields do not say: a tree has as many leaves as its structure."""
        structure, leaves = getattr(made, "structure", None), getattr(made, "leaves", None)
        if (
            isinstance(structure, Structure)
            and isinstance(leaves, tuple)
            and structure.n_leaves != len(leaves)
        ):
            raise damaged(
                where, f"{structure.n_leaves} leaves are wanted here, and there are {len(leaves)}"
            )

    def _structure(self, data: Any, where: str) -> Structure:
        if type(data) is not int or not 0 <= data < len(self._structures):
            raise damaged(where, "the number of a structure is wanted here")
        return self._structures[data]

    def _read_structure(self, row: Any, where: str) -> None:
        if (
            not isinstance(row, list)
            or len(row) != 4
            or not isinstance(row[2], list)
            or not isinstance(row[3], list)
        ):
            raise damaged(where, "a kind, a context, entries and children are wanted here")
        kind, context = (self._scalar((str,), text, where) for text in row[:2])
        entries = tuple(self._entry(entry, where) for entry in row[2])
        children = tuple(self._structure(child, where) for child in row[3])
        if len(entries) != len(children) or (kind == LEAF and children):
            raise damaged(where, "every child has one entry, and a leaf has none")
        nodes = 1 + sum(self._sizes[child][0] for child in row[3])
        depth = 1 + max((self._sizes[child][1] for child in row[3]), default=0)
        if nodes > _MOST_NODES or depth > _DEEPEST:
            raise damaged(where, "it is larger, or deeper, than arguments are")
        self._structures.append(Structure(kind, entries, children, context))
        self._sizes.append((nodes, depth))

    def _entry(self, data: Any, where: str) -> Entry:
        if isinstance(data, dict) and len(data) == 1:
            ((kind, content),) = data.items()
            if kind in ENTRIES:
                value = self._constant(content, where)
                cls, _ = ENTRIES[kind]
                wanted = {"name": str, "attr": str, "index": int}.get(kind)
                if wanted is None or type(value) is wanted:
                    made: Entry = cls(value)
                    return made
        raise damaged(where, "a step of a path is wanted here")


def _is_plain(declared: Any) -> bool:
    """True for what is written as a number or a text, though it is neither."""
    return declared in (Expression, Structure) or (
        isinstance(declared, type) and issubclass(declared, Enum)
    )


def _expression(data: Any, where: str) -> Expression:
    if not isinstance(data, str) or len(data) > _LONGEST:
        raise damaged(where, "a size is wanted here")
    try:
        return Expression.parse(data)
    except (OnlookerError, RecursionError, MemoryError, AttributeError) as error:
        raise damaged(where, f"{data[:80]!r} is not a size") from error


def _enum(cls: type[Enum], data: Any, where: str) -> Enum:
    if isinstance(data, (str, int)):
        for member in cls:
            if member.value == data and type(member.value) is type(data):
                return member
    raise damaged(where, f"one of {', '.join(str(member.value) for member in cls)} is wanted here")


def _named(kinds: tuple[Any, ...]) -> str:
    return " or ".join("null" if kind is type(None) else class_of(kind).__name__ for kind in kinds)
