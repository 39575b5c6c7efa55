"""Tells when the attribute of an object is read before it is written: ``is`` asks no object, so that
nothing can stand in the place of None.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["reads_are_told"]


@contextlib.contextmanager
def reads_are_told(owner: Any, name: str, read: Callable[[], None]) -> Iterator[bool]:
    """Inside the block ``read()`` is called when an attribute of an object is read that the block has
    not written. Yields False where the class of the object lets nobody tell.

    >>> class Counter:
    ...     last = None
    >>> counter, read = Counter(), []
    >>> counter.n = None
    >>> with reads_are_told(counter, "n", lambda: read.append("n")) as is_told:
    ...     _ = counter.n is None
    >>> is_told, read
    (True, ['n'])
    """
    cls = type(owner)
    missing = object()
    written: list[bool] = []

    def get(obj: Any) -> Any:
        if obj is owner and not written:
            read()
        value = vars(obj).get(name, missing)
        if value is missing:
            raise AttributeError(name)
        return value

    def put(obj: Any, value: Any) -> None:
        if obj is owner:
            written.append(True)
        vars(obj)[name] = value

    def remove(obj: Any) -> None:
        if obj is owner:
            written.append(True)
        del vars(obj)[name]

    space = {name: property(get, put, remove), "__slots__": (), "__module__": cls.__module__}
    space["__qualname__"] = cls.__qualname__
    is_told = name not in vars(cls)
    try:
        if is_told:
            owner.__class__ = type(cls.__name__, (cls,), space)
    except TypeError:
        is_told = False
    try:
        yield is_told
    finally:
        if is_told:
            object.__setattr__(owner, "__class__", cls)
