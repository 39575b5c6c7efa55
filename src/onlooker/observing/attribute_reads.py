"""Tells when the attribute of an object is read before it is written: ``is`` asks no object, so that
nothing can stand in the place of None.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType
from typing import Any

import torch

__all__ = ["class_of", "reads_are_told"]

_CLASS: Any = vars(object)["__class__"]

#: where torch makes a proxy of a module: its class is below the one that the module has
_OF_TORCH = (f"{torch.fx.__name__}.",)
#: modules whose code looks into the namespace of any object, and not for an attribute of this one
_OTHERS = (f"{torch.nn.Module.__module__}.", *_OF_TORCH, f"{__name__.split('.')[0]}.")


@contextlib.contextmanager
def reads_are_told(owner: Any, name: str, read: Callable[[], None]) -> Iterator[bool]:
    """Inside the block ``read()`` is called when an attribute of an object is read before the block has written
    the attribute, also by ``vars(obj)`` or a copy of the object. Yields False where the class of the object lets
    nobody tell.

    >>> class Counter:
    ...     last = None
    >>> counter, read = Counter(), []
    >>> counter.n = None
    >>> with reads_are_told(counter, "n", lambda: read.append("n")) as is_told:
    ...     counter.last = 2
    ...     _ = counter.n is None
    >>> is_told, read
    (True, ['n'])
    >>> with reads_are_told(counter, "n", lambda: read.append("again")):
    ...     counter.n = 3
    ...     _ = counter.n, vars(counter)
    >>> read
    ['n']
    """
    cls = type(owner)
    space = _Told(owner, name, read).space_of(cls)
    # a class of another kind may keep a register of those below it
    is_plain = isinstance(cls.__init_subclass__, BuiltinFunctionType)
    is_told = is_plain and name not in vars(cls) and bool(space)
    try:
        if is_told:
            make: Any = type(cls)
            _CLASS.__set__(owner, make(cls.__name__, (cls,), space))
    except Exception:  # a class with slots, or one whose metaclass refuses
        is_told = False
    try:
        yield is_told
    finally:
        if is_told:
            _CLASS.__set__(owner, cls)


def class_of(kind: type) -> type:
    """The class that an object had before the block of :func:`reads_are_told`, by the class that the object has
    inside of the block; any other class as it is.
    """
    while (stood := vars(kind).get("__class__")) is not None and isinstance(stood, _ClassBefore):
        kind = stood.cls
    return kind


def _asks(modules: tuple[str, ...]) -> bool:
    """True where the code that asks an object for something is that of one of these modules."""
    asking = sys._getframe(2).f_globals.get("__name__", "")
    return f"{asking}.".startswith(modules)


class _ClassBefore:
    """Answers ``obj.__class__`` with the class that the object had; torch makes classes below the one that it has."""

    def __init__(self, cls: type) -> None:
        self.cls = cls

    def __get__(self, obj: Any, owner: type | None = None) -> Any:
        if obj is None:
            return type(owner)
        return type(obj) if _asks(_OF_TORCH) else class_of(self.cls)

    def __set__(self, obj: Any, cls: type) -> None:
        _CLASS.__set__(obj, cls)


class _Told:
    """The attribute of one object, and whether the block has written the attribute. The proxy that torch makes of a
    module has the namespace of the module, and a class below that of the module: reading the proxy counts too.
    """

    def __init__(self, owner: Any, name: str, read: Callable[[], None]) -> None:
        self._name, self._read = name, read
        self._is_written = False
        spaces = (vars(base).get("__dict__") for base in type(owner).__mro__)
        self._descriptor: Any = next((one for one in spaces if one is not None), None)
        self._own = None if self._descriptor is None else self._descriptor.__get__(owner)

    def space_of(self, cls: type) -> dict[str, Any]:
        """What a class below the one of the object has; nothing where the object has no namespace."""
        if self._descriptor is None:
            return {}
        own = {"__slots__": (), "__module__": cls.__module__, "__qualname__": cls.__qualname__}
        namespace = property(self._taken, self._put_namespace)
        return {
            **own,
            self._name: property(self._get, self._put, self._remove),
            "__dict__": namespace,
            "__class__": _ClassBefore(cls),
            "__reduce_ex__": lambda obj, protocol: self._reduced(cls, obj, protocol),
        }

    def _look(self, space: Any) -> None:
        if space is self._own and not self._is_written:
            self._read()

    def _get(self, obj: Any) -> Any:
        space = self._descriptor.__get__(obj)
        self._look(space)
        try:
            return space[self._name]
        except KeyError:
            raise AttributeError(self._name) from None

    def _put(self, obj: Any, value: Any) -> None:
        space = self._descriptor.__get__(obj)
        self._is_written |= space is self._own
        space[self._name] = value

    def _remove(self, obj: Any) -> None:
        space = self._descriptor.__get__(obj)
        self._is_written |= space is self._own
        del space[self._name]

    def _taken(self, obj: Any) -> Any:
        space = self._descriptor.__get__(obj)
        if not _asks(_OTHERS):
            self._look(space)
        return space

    def _reduced(self, cls: type, obj: Any, protocol: Any) -> Any:
        """What a copy is made of."""
        self._look(self._descriptor.__get__(obj))
        reduce: Any = cls.__reduce_ex__
        return reduce(obj, protocol)

    def _put_namespace(self, obj: Any, value: Any) -> None:
        self._look(self._descriptor.__get__(obj))
        self._descriptor.__set__(obj, value)
