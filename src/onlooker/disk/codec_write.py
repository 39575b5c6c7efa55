"""Values of ``core`` -> JSON."""

from __future__ import annotations

import dataclasses
import sys
import typing
from collections.abc import Mapping
from enum import Enum
from typing import Any

from ..core.errors import UnsupportedError
from ..core.path import Entry
from ..core.structure import Structure
from .codec_types import ENTRIES, SCALARS, class_of, fields_of, is_tagged, members_of
from .text import write_constant

__all__ = ["Encoder"]


class Encoder:
    """Writes values; the structures that they hold are collected in ``structures``."""

    def __init__(self) -> None:
        self.structures: list[Any] = []
        self._known: dict[Structure, int] = {}
        self._seen: dict[int, tuple[Structure, int]] = {}

    def encode(self, declared: Any, value: Any) -> Any:
        """``value``, of the type ``declared``, as JSON.

        :raises UnsupportedError: ``not-saved``
        """
        if isinstance(value, Enum) and any(
            isinstance(m, type) and issubclass(m, Enum) for m in members_of(declared)
        ):
            return value.value
        if isinstance(value, SCALARS) or declared is Any:
            return self._constant(value)
        if isinstance(value, Structure):
            return self._structure(value)
        if _is_expression(value):
            return str(value)
        if isinstance(value, (tuple, list)):
            return self._items(_member(declared, tuple), value)
        if isinstance(value, Mapping):
            return self._mapping(_member(declared, Mapping), value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self._dataclass(declared, value)
        raise _not_saved(value)

    def _constant(self, value: Any) -> Any:
        if type(value) is tuple:
            return {"tuple": [self._constant(child) for child in value]}
        try:
            return write_constant(value)
        except TypeError:
            raise _not_saved(value) from None

    def _items(self, declared: Any, value: typing.Sequence[Any]) -> list[Any]:
        inside = typing.get_args(declared)
        if inside[-1] is Ellipsis:
            return [self.encode(inside[0], child) for child in value]
        return [self.encode(kind, child) for kind, child in zip(inside, value, strict=True)]

    def _mapping(self, declared: Any, value: Mapping[Any, Any]) -> list[Any]:
        """Pairs: a key is no text when it is a path, and any text is one when it is."""
        key, inside = typing.get_args(declared)
        return [
            [self.encode(key, name), self.encode(inside, child)] for name, child in value.items()
        ]

    def _dataclass(self, declared: Any, value: Any) -> dict[str, Any]:
        member = _member(declared, type(value))
        content = {
            f.name: self.encode(f.declared, getattr(value, f.name)) for f in fields_of(member)
        }
        return {"is": type(value).__name__, **content} if is_tagged(declared) else content

    def _structure(self, value: Structure) -> int:
        seen = self._seen.get(id(value))
        if seen is not None:
            return seen[1]
        number = self._known.get(value)
        if number is None:
            children = [self._structure(child) for child in value.children]
            entries = [self._entry(entry) for entry in value.entries]
            self.structures.append(
                [self._constant(value.kind), self._constant(value.context), entries, children]
            )
            number = self._known[value] = len(self.structures) - 1
        self._seen[id(value)] = (value, number)
        return number

    def _entry(self, entry: Entry) -> dict[str, Any]:
        for kind, (cls, attribute) in ENTRIES.items():
            if isinstance(entry, cls):
                return {kind: self._constant(getattr(entry, attribute))}
        raise _not_saved(entry)


def _is_expression(value: Any) -> bool:
    """True for a size. sympy, which holds it, takes longer to import than all else here, and who
    records calls needs none of it.
    """
    module = sys.modules.get("onlooker.core.expression")
    return module is not None and isinstance(value, module.Expression)


def _member(declared: Any, cls: Any) -> Any:
    """The member of a union that a value of the class belongs to."""
    for member in members_of(declared):
        found = class_of(member)
        if found is cls or (isinstance(found, type) and issubclass(found, cls)):
            return member
    raise UnsupportedError(
        f"A {cls.__name__} stands where {declared} is declared.", slug="not-saved"
    )


def _not_saved(value: Any) -> UnsupportedError:
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    return UnsupportedError(
        f"A {kind} cannot be written into a file.",
        slug="not-saved",
        hint=(
            "It is a key of a dict, or a constant, that is no bool, number, text, None or tuple of"
            " these."
        ),
    )
