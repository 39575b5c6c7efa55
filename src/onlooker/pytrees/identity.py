"""A text for an object that cannot be opened: two arguments with equal texts are the same to a
model.

A program is right for the objects that it was exported with. An object is told from others by its
state (a configuration, a dtype, an array of numpy, a function by its code), read without running
any code of the user. An object without readable state, such as a tensor or a lock, is only equal to
itself: the text names this very object of this process.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import hashlib
import itertools
import os
import secrets
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from .nodes import ATOMS, qualified_name

__all__ = [
    "attributes_of",
    "constant_text",
    "generator_device",
    "has_only_attributes",
    "identity_of",
    "is_named_only",
    "slots_of",
]

#: a text that is not longer is kept as it is, and read in messages
_SHORT = 60
_MOST_NODES = 20_000
_MOST_BYTES = 64 * 1024**2
_MOST_HELD = 256
_PLAIN = (
    *ATOMS,
    complex,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    range,
    slice,
    type(...),
)
#: modules of Python whose objects say all that they are in their ``repr``
_SAID = frozenset({"datetime", "decimal", "fractions", "ipaddress", "pathlib", "uuid", "zoneinfo"})

#: before the device of a generator, which is all that tells it from others
_ON = "on "

_process = secrets.token_hex(3)
_numbers = itertools.count()
_known: dict[int, tuple[weakref.ref[Any], int]] = {}
_held: OrderedDict[int, tuple[Any, int]] = OrderedDict()


class _UnclearError(Exception):
    """An object whose state cannot be read: it is only equal to itself."""


def identity_of(value: Any) -> str:
    """A text that is equal for objects of equal state, else a name of this very object.

    >>> identity_of(torch.float16), identity_of({1, 2}) == identity_of({2, 1})
    ('torch.float16', True)
    >>> one, other = object(), object()
    >>> identity_of(one) == identity_of(one), identity_of(one) == identity_of(other)
    (True, False)
    """
    if isinstance(value, torch.Generator):  # a graph is right for all, or there is none
        return f"{_ON}{value.device}"
    try:
        text = "".join(_ObjectReader().described(value))
    except Exception:  # too large, too deep, or an object that raises where it should not
        text = _named(value)
    if len(text) <= _SHORT and text.isprintable():
        return text
    return f"state {hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


def generator_device(kind: str, identity: str) -> torch.device | None:
    """The device of the generator of random numbers with this class and identity; None for any
    other object.

    >>> generator_device("torch._C.Generator", "on cpu"), generator_device("app.Settings", "on cpu")
    (device(type='cpu'), None)
    """
    is_generator = kind == qualified_name(torch.Generator)
    return torch.device(identity.removeprefix(_ON)) if is_generator else None


def constant_text(value: Any) -> str:
    """A text that is equal for equal constants: used where a container compares its context."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k!r}: {constant_text(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (*ATOMS, torch.dtype, torch.device, torch.layout)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}({', '.join(map(constant_text, value))})"
    if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
        return identity_of(value)
    return f"<{qualified_name(type(value))}: {identity_of(value)}>"


def attributes_of(value: Any) -> dict[str, Any]:
    """Returns the attributes that an object holds itself: in its slots (a class of attrs has them
    by default), and in its ``__dict__``.

    No code of its class runs: a class may define ``__getattribute__`` as it likes.
    """
    held: dict[str, Any] = {}
    cls: Any = type(value)
    for name, member in slots_of(cls).items():
        with contextlib.suppress(AttributeError):  # a slot without a value
            held[name] = member.__get__(value, cls)
    try:
        inside = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return held
    return {**held, **inside} if isinstance(inside, dict) else held


@functools.lru_cache(maxsize=4096)
def slots_of(cls: type) -> dict[str, Any]:
    """The slots of a class and of its bases, by the names that attributes have."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        for name in _slots(base):
            is_private = name.startswith("__") and not name.endswith("__")
            own = f"_{base.__name__.lstrip('_')}{name}" if is_private else name
            if isinstance(member := vars(base).get(own), types.MemberDescriptorType):
                found[own] = member
    return found


def _slots(cls: type) -> list[str]:
    names = vars(cls).get("__slots__", ())
    listed = [names] if isinstance(names, str) else list(names)
    return [name for name in listed if name not in ("__dict__", "__weakref__")]


def _named(value: Any) -> str:
    return f"object {_number(value)} of process {os.getpid()}-{_process}"


def is_named_only(identity: str) -> bool:
    """True for the identity of an object without readable state, which is only equal to itself."""
    return identity.startswith("object ") and f" of process {os.getpid()}-{_process}" in identity


def _number(value: Any) -> int:
    """The number of an object in this process: what dies gives its number to nobody."""
    key = id(value)
    try:
        found = _known.get(key)
        if found is not None and found[0]() is value:
            return found[1]
        number = next(_numbers)
        _known[key] = weakref.ref(value, functools.partial(_forget, key, number)), number
        return number
    except TypeError:  # no weak references to it: it is kept alive while it is one of the latest
        known = _held.get(key)
        if known is not None:
            return known[1]
        _held[key] = value, next(_numbers)
        while len(_held) > _MOST_HELD:
            _held.popitem(last=False)
        return _held[key][1]


def _forget(key: int, number: int, _: Any) -> None:
    found = _known.get(key)
    if found is not None and found[1] == number:
        del _known[key]


class _ObjectReader:
    """Describes one object and all that it holds, as pieces of text."""

    def __init__(self) -> None:
        self._above: list[int] = []
        self._left = _MOST_NODES

    def described(self, value: Any) -> Iterator[str]:
        """The pieces."""
        self._left -= 1
        if self._left < 0:
            raise _UnclearError
        if isinstance(value, type):
            yield _named(value) if "<locals>" in value.__qualname__ else qualified_name(value)
        elif isinstance(value, enum.Enum):
            yield f"{qualified_name(type(value))}.{value.name}"
        elif type(value) in _PLAIN:
            yield repr(value)
        elif isinstance(value, types.ModuleType):
            yield value.__name__
        elif id(value) in self._above:
            yield f"the one {len(self._above) - self._above.index(id(value))} above"
        else:
            self._above.append(id(value))
            try:
                yield from list(self._composed(value))
            except _UnclearError:
                if self._left < 0:
                    raise
                yield _named(value)
            self._above.pop()

    def _composed(self, value: Any) -> Iterator[str]:
        for kinds, describe in _DESCRIBED:
            if isinstance(value, kinds):
                yield from describe(self, value)
                return
        if type(value).__module__ == "numpy" and hasattr(type(value), "__array_interface__"):
            yield from _array(value)
        elif type(value).__module__ in _SAID:
            yield repr(value)
        else:
            yield from self.with_state(value)

    def all_of(self, values: Iterable[Any]) -> Iterator[str]:
        """Several values, set apart."""
        yield "("
        for value in values:
            yield from self.described(value)
            yield ", "
        yield ")"

    def pairs(self, items: Iterable[tuple[Any, Any]]) -> Iterator[str]:
        """Keys and values."""
        yield from self.all_of(itertools.chain.from_iterable(items))

    def with_state(self, value: Any) -> Iterator[str]:
        """The class and the attributes of an object that has nothing but these."""
        cls = type(value)
        builtin = next(
            (base for base in (dict, list, tuple, set, frozenset) if isinstance(value, base)),
            object,
        )
        if cls is object or not has_only_attributes(cls, builtin):
            raise _UnclearError
        yield qualified_name(cls)
        yield from self.pairs(sorted(attributes_of(value).items()))


def has_only_attributes(cls: type, builtin: type = object) -> bool:
    """True for a class of Python: an object of it has no state in C but that of ``builtin``."""
    slots = sum(len(_slots(base)) for base in cls.__mro__)
    tables = (cls.__dictoffset__ > 0) + (cls.__weakrefoffset__ > 0)
    return cls.__basicsize__ <= builtin.__basicsize__ + 8 * (slots + tables)


def _unclear(reader: _ObjectReader, value: Any) -> Iterator[str]:
    raise _UnclearError
    yield


def _weak(reader: _ObjectReader, value: weakref.ref[Any]) -> Iterator[str]:
    yield "weakref"
    yield from reader.all_of((value(),))


def _bytes(reader: _ObjectReader, value: bytes) -> Iterator[str]:
    yield repr(value) if len(value) <= _SHORT else f"bytes {hashlib.sha256(value).hexdigest()}"


def _sequence(reader: _ObjectReader, value: Any) -> Iterator[str]:
    base = list if isinstance(value, list) else tuple
    yield type(value).__name__
    yield from reader.all_of(base.__iter__(value))
    if type(value) is not base:
        yield from reader.with_state(value)


def _mapping(reader: _ObjectReader, value: dict[Any, Any]) -> Iterator[str]:
    yield type(value).__name__
    yield from reader.pairs(dict.items(value))
    if type(value) not in (dict, OrderedDict):
        yield from reader.with_state(value)


def _set(reader: _ObjectReader, value: Any) -> Iterator[str]:
    base = set if isinstance(value, set) else frozenset
    yield type(value).__name__
    yield str(sorted("".join(reader.described(child)) for child in base.__iter__(value)))
    if type(value) is not base:
        yield from reader.with_state(value)


def _partial(reader: _ObjectReader, value: functools.partial[Any]) -> Iterator[str]:
    yield "partial"
    yield from reader.all_of((value.func, value.args, value.keywords, attributes_of(value)))


def _function(reader: _ObjectReader, value: types.FunctionType) -> Iterator[str]:
    yield f"{value.__module__}.{value.__qualname__}"
    cells = tuple(cell.cell_contents for cell in value.__closure__ or ())
    held = (value.__code__, value.__defaults__, value.__kwdefaults__, cells, vars(value))
    if value.__module__ == "__main__" or "<" in value.__qualname__ or any(held[1:]):
        yield from reader.all_of(held)


def _code(reader: _ObjectReader, value: types.CodeType) -> Iterator[str]:
    yield value.co_code.hex()
    yield from reader.all_of((value.co_consts, value.co_names, value.co_varnames))


def _method(reader: _ObjectReader, value: types.MethodType) -> Iterator[str]:
    yield from reader.all_of((value.__func__, value.__self__))


def _builtin(reader: _ObjectReader, value: types.BuiltinFunctionType) -> Iterator[str]:
    owner = getattr(value, "__self__", None)
    yield f"{getattr(value, '__module__', '')}.{value.__qualname__}"
    if owner is not None and not isinstance(owner, types.ModuleType):
        yield from reader.all_of((owner,))


def _array(value: Any) -> Iterator[str]:
    if value.dtype.hasobject or value.nbytes > _MOST_BYTES:
        raise _UnclearError
    content = value.tobytes()
    yield f"{qualified_name(type(value))} {value.dtype}{list(value.shape)} "
    yield repr(value.item()) if not value.shape else hashlib.sha256(content).hexdigest()


_Describe = Callable[[_ObjectReader, Any], Iterator[str]]
#: per kind of object what describes it, the first that fits
_DESCRIBED: tuple[tuple[type | tuple[type, ...], _Describe], ...] = (
    (torch.Tensor, _unclear),
    (weakref.ref, _weak),
    ((bytes, bytearray), _bytes),
    ((list, tuple), _sequence),
    (dict, _mapping),
    ((set, frozenset), _set),
    (functools.partial, _partial),
    (types.FunctionType, _function),
    (types.CodeType, _code),
    (types.MethodType, _method),
    (
        (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType),
        _builtin,
    ),
)
