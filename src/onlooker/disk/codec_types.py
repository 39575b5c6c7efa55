"""What the codec knows of a type: the members of a union, the fields of a dataclass."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from typing import Any, Union

from ..core.path import Attr, Index, Key, Name

__all__ = ["ENTRIES", "SCALARS", "Field", "class_of", "fields_of", "is_tagged", "members_of"]

SCALARS = (bool, int, float, str, type(None))
#: the steps of a path, and the attribute that each has
ENTRIES = {
    "name": (Name, "name"),
    "attr": (Attr, "name"),
    "key": (Key, "key"),
    "index": (Index, "index"),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """A field that is written; ``required`` where a document without it cannot be read."""

    name: str
    declared: Any
    required: bool


@functools.lru_cache(maxsize=512)
def members_of(declared: Any) -> tuple[Any, ...]:
    """The types of a union, or the type itself."""
    if typing.get_origin(declared) in (Union, types.UnionType):
        return typing.get_args(declared)
    return (declared,)


def class_of(declared: Any) -> Any:
    """The class behind ``Tree[Spec]``, or the class itself."""
    return typing.get_origin(declared) or declared


@functools.lru_cache(maxsize=512)
def is_tagged(declared: Any) -> bool:
    """True for a union of several dataclasses: what is written says which one it is."""
    return sum(dataclasses.is_dataclass(class_of(member)) for member in members_of(declared)) > 1


@functools.lru_cache(maxsize=512)
def fields_of(declared: Any) -> tuple[Field, ...]:
    """The fields of a dataclass that are written: those that take part in comparisons."""
    cls = class_of(declared)
    hints = typing.get_type_hints(cls)
    given = dict(zip(getattr(cls, "__parameters__", ()), typing.get_args(declared), strict=False))
    return tuple(
        Field(f.name, _filled(hints[f.name], given), _is_required(f))
        for f in dataclasses.fields(cls)
        if f.init and f.compare
    )


def _filled(declared: Any, given: dict[Any, Any]) -> Any:
    """``tuple[T, ...]`` with what ``T`` stands for."""
    if declared in given:
        return given[declared]
    wanted = getattr(declared, "__parameters__", ())
    return declared[tuple(given.get(name, Any) for name in wanted)] if wanted else declared


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
