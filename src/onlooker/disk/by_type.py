"""Readers and writers of the values of ``core``, as JSON: one for each type.

Both are made once from the type, and are closures that call those of the parts. A reader takes no
value of another type, and stops at the first fault, whose place it names.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import types
import typing
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from enum import Enum
from typing import Any, Union

from ..core.errors import OnlookerError
from ..core.structure import Structure
from .structures import KnownStructures, WrittenStructures
from .text import Fault, NotWritten, read_constant, read_nested, write_constant, write_nested

__all__ = ["KNOWN", "WRITTEN", "reader_of", "writer_of"]

#: the structures of the document that is read, and of the one that is written
KNOWN: ContextVar[KnownStructures] = ContextVar("KNOWN")
WRITTEN: ContextVar[WrittenStructures] = ContextVar("WRITTEN")

Reader = Callable[[Any], Any]
Writer = Callable[[Any], Any]

_SCALARS = (bool, int, float, str, type(None))
_LONGEST_SIZE = 2000
_TAG = "is"


@functools.cache
def reader_of(declared: Any) -> Reader:
    """Returns a function that makes a value of a type from JSON; it raises
    :class:`~onlooker.disk.text.Fault`.
    """
    return _codec_of(declared)[0](declared)


@functools.cache
def writer_of(declared: Any) -> Writer:
    """Returns a function that makes JSON from a value of a type; it raises
    :class:`~onlooker.disk.text.NotWritten`.
    """
    return _codec_of(declared)[1](declared)


def _codec_of(declared: Any) -> tuple[Callable[[Any], Reader], Callable[[Any], Writer]]:
    """Returns the codec that makes the reader and the writer of a type."""
    for is_kind, reader, writer in _KINDS:
        if is_kind(declared):
            return reader, writer
    raise TypeError(f"{declared} is no type of a document")


# types


@functools.cache
def _members(declared: Any) -> tuple[Any, ...]:
    """The types of a union, or the type itself."""
    if typing.get_origin(declared) in (Union, types.UnionType):
        return typing.get_args(declared)
    return (declared,)


def _class(declared: Any) -> Any:
    """The class behind ``Tree[Spec]``, or the class itself."""
    return typing.get_origin(declared) or declared


def _is_scalar(declared: Any) -> bool:
    return all(member in _SCALARS for member in _members(declared))


def _is_expression(declared: Any) -> bool:
    """True for the class of sizes. sympy, which holds them, takes longer to import than all else
    here, and who records calls needs none of it.
    """
    module = sys.modules.get("onlooker.core.sizes.expression")
    return module is not None and declared is module.Expression


def _is_enum(declared: Any) -> bool:
    return isinstance(declared, type) and issubclass(declared, Enum)


def _is_tuple(declared: Any) -> bool:
    return typing.get_origin(declared) is tuple


def _is_mapping(declared: Any) -> bool:
    return isinstance(_class(declared), type) and issubclass(_class(declared), Mapping)


def _is_class(declared: Any) -> bool:
    return dataclasses.is_dataclass(_class(declared))


def _is_tagged(declared: Any) -> bool:
    """True for a union of several dataclasses: what is written says which one it is."""
    return sum(map(_is_class, _members(declared))) > 1


def _is_optional(declared: Any) -> bool:
    """True for one type beside None or text: ``Plan | None``."""
    others = [member for member in _members(declared) if member not in _SCALARS]
    return len(_members(declared)) > 1 and len(others) == 1


# scalars


def _scalar_reader(declared: Any) -> Reader:
    return _reader_of_scalars(_members(declared))


def _reader_of_scalars(kinds: tuple[Any, ...]) -> Reader:
    plain = {*kinds, int} if float in kinds else {*kinds}
    takes_derived = len(kinds) > 2

    def read(data: Any) -> Any:
        value = read_constant(data)
        cls = type(value)
        if cls in plain or (takes_derived and cls not in _SCALARS and isinstance(value, kinds)):
            return value
        raise Fault(f"{_named(kinds)} is wanted here, and there is {_named((cls,))}")

    return read


def _enum_reader(cls: type[Enum]) -> Reader:
    members = {(type(member.value), member.value): member for member in cls}
    wanted = ", ".join(str(member.value) for member in cls)

    def read(data: Any) -> Enum:
        found = members.get((type(data), data)) if isinstance(data, (str, int)) else None
        if found is None:
            raise Fault(f"one of {wanted} is wanted here")
        return found

    return read


def _enum_writer(cls: type[Enum]) -> Writer:
    return lambda value: value.value if isinstance(value, Enum) else write_constant(value)


def _expression_reader(cls: Any) -> Reader:
    def read(data: Any) -> Any:
        if not isinstance(data, str) or len(data) > _LONGEST_SIZE:
            raise Fault("a size is wanted here")
        try:
            return cls.parse(data)
        except (OnlookerError, RecursionError, MemoryError, AttributeError) as error:
            raise Fault(f"{data[:80]!r} is not a size") from error

    return read


def _read_structure(data: Any) -> Structure:
    return KNOWN.get().structure(data)


def _write_structure(value: Any) -> int:
    return WRITTEN.get().number(value)


# unions


def _optional_reader(declared: Any) -> Reader:
    (other,) = (member for member in _members(declared) if member not in _SCALARS)
    scalars = tuple(member for member in _members(declared) if member in _SCALARS)
    read_other = reader_of(other)
    read_scalar = _reader_of_scalars(scalars)

    def read(data: Any) -> Any:
        if data is None and type(None) in scalars:
            return None
        if scalars == (type(None),) or isinstance(data, dict):
            return read_other(data)
        return read_scalar(data)

    return read


def _optional_writer(declared: Any) -> Writer:
    (other,) = (member for member in _members(declared) if member not in _SCALARS)
    write_other = writer_of(other)
    if str not in _members(declared):  # a member of an enumeration of texts is a text, too
        return lambda value: None if value is None else write_other(value)
    return lambda value: write_constant(value) if isinstance(value, str) else write_other(value)


def _tagged_reader(declared: Any) -> Reader:
    members = _members(declared)
    readers = {_class(member).__name__: _class_reader(member, tagged=True) for member in members}

    def read(data: Any) -> Any:
        tag = data.get(_TAG) if isinstance(data, dict) else None
        reader = readers.get(tag) if isinstance(tag, str) else None
        if reader is None:
            raise Fault(f"one of {_named(members)} is wanted here")
        return reader(data)

    return read


def _tagged_writer(declared: Any) -> Writer:
    writers = {_class(member): writer_of(member) for member in _members(declared)}

    def write(value: Any) -> Any:
        cls = type(value)
        if cls not in writers:
            raise NotWritten(value)
        return {_TAG: cls.__name__, **writers[cls](value)}

    return write


# containers


def _tuple_reader(declared: Any) -> Reader:
    inside = typing.get_args(declared)
    is_long = inside[-1] is Ellipsis
    readers = [reader_of(kind) for kind in inside if kind is not Ellipsis]

    def read(data: Any) -> tuple[Any, ...]:
        if not isinstance(data, list) or not (is_long or len(data) == len(inside)):
            raise Fault("a list is wanted here" if is_long else f"{len(inside)} are wanted")
        made: list[Any] = []
        try:
            for row, reader in zip(data, readers * len(data) if is_long else readers, strict=True):
                made.append(reader(row))
        except Fault as fault:
            raise fault.inside(f"[{len(made)}]") from None
        return tuple(made)

    return read


def _tuple_writer(declared: Any) -> Writer:
    inside = typing.get_args(declared)
    if inside[-1] is Ellipsis:
        write = writer_of(inside[0])
        return lambda value: list(map(write, value))
    writers = [writer_of(kind) for kind in inside]
    return lambda value: [write(one) for write, one in zip(writers, value, strict=True)]


def _mapping_reader(declared: Any) -> Reader:
    pair: Any = types.GenericAlias(tuple, typing.get_args(declared))
    read_pairs = _tuple_reader(types.GenericAlias(tuple, (pair, Ellipsis)))

    def read(data: Any) -> dict[Any, Any]:
        pairs = read_pairs(data)
        found = dict(pairs)
        if len(found) != len(pairs):
            raise Fault("a key stands twice")
        return found

    return read


def _mapping_writer(declared: Any) -> Writer:
    """Pairs: a key is no text when it is a path, and any text is one when it is."""
    write_key, write_value = map(writer_of, typing.get_args(declared))
    return lambda value: [[write_key(key), write_value(one)] for key, one in value.items()]


# dataclasses


def _class_reader(declared: Any, *, tagged: bool = False) -> Reader:
    cls = _class(declared)
    fields = _fields(declared)
    readers = [(field.name, reader_of(kind)) for field, kind in fields]
    required = frozenset(field.name for field, _ in fields if _is_required(field))
    allowed = frozenset(field.name for field, _ in fields) | ({_TAG} if tagged else set())
    is_tree = {"structure", "leaves"} <= allowed

    def read(data: Any) -> Any:
        if not isinstance(data, dict):
            raise Fault(f"a {cls.__name__} is wanted here")
        if not required <= data.keys() <= allowed:
            raise _other_fields(cls, required, allowed, data)
        values = {}
        name = ""
        try:
            for name, reader in readers:
                if name in data:
                    values[name] = reader(data[name])
        except Fault as fault:
            raise fault.inside(f".{name}") from None
        if is_tree:
            KNOWN.get().check_leaves(data["structure"], data["leaves"])
        try:
            return cls(**values)
        except (TypeError, ValueError, OnlookerError) as error:
            raise Fault(f"it makes no {cls.__name__} ({error})") from error

    return read


def _other_fields(
    cls: Any, required: frozenset[str], allowed: frozenset[str], data: Mapping[str, Any]
) -> Fault:
    unknown = data.keys() - allowed
    if unknown:
        return Fault(f"a {cls.__name__} has no {min(unknown)[:80]!r}")
    return Fault(f"{min(required - data.keys())} is missing")


def _class_writer(declared: Any) -> Writer:
    writers = [(field.name, writer_of(kind)) for field, kind in _fields(declared)]
    return lambda value: {name: write(getattr(value, name)) for name, write in writers}


def _fields(declared: Any) -> list[tuple[dataclasses.Field[Any], Any]]:
    """The fields that are written, those that take part in comparisons, each with its type."""
    cls = _class(declared)
    hints = typing.get_type_hints(cls)
    given = dict(zip(getattr(cls, "__parameters__", ()), typing.get_args(declared), strict=False))
    written = [field for field in dataclasses.fields(cls) if field.init and field.compare]
    return [(field, _filled(hints[field.name], given)) for field in written]


def _filled(declared: Any, given: Mapping[Any, Any]) -> Any:
    """``tuple[T, ...]`` with what ``T`` stands for."""
    if declared in given:
        return given[declared]
    wanted = getattr(declared, "__parameters__", ())
    return declared[tuple(given.get(name, Any) for name in wanted)] if wanted else declared


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _named(kinds: tuple[Any, ...]) -> str:
    return " or ".join("null" if kind is type(None) else _class(kind).__name__ for kind in kinds)


#: each kind of type: how it is told, and what makes its reader and its writer; the first one counts
_KINDS: tuple[tuple[Callable[[Any], bool], Callable[..., Reader], Callable[..., Writer]], ...] = (
    (lambda declared: declared is Any, lambda _: read_nested, lambda _: write_nested),
    (_is_scalar, _scalar_reader, lambda _: write_constant),
    (lambda declared: declared is Structure, lambda _: _read_structure, lambda _: _write_structure),
    (_is_expression, _expression_reader, lambda _: str),
    (_is_enum, _enum_reader, _enum_writer),
    (_is_tuple, _tuple_reader, _tuple_writer),
    (_is_mapping, _mapping_reader, _mapping_writer),
    (_is_optional, _optional_reader, _optional_writer),
    (_is_tagged, _tagged_reader, _tagged_writer),
    (_is_class, _class_reader, _class_writer),
)
