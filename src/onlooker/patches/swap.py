"""One attribute of one object, swapped for as long as a block lasts, and put back exactly."""

from __future__ import annotations

import contextlib
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["swapped"]

_MISSING = object()
#: where a module of torch keeps what is no plain attribute
_TABLES = ("_parameters", "_buffers", "_modules")


@contextlib.contextmanager
def swapped(owner: Any, name: str, value: Any) -> Iterator[Any]:
    """Inside the block ``owner.name`` is ``value``; on exit, also after an exception, ``owner`` is
    what it was.

    ``owner`` is a class, a module or any object. What is put back is what ``owner`` itself held: a
    staticmethod or a property as that object and not as what it gives, and nothing at all where the
    attribute was inherited or did not exist. ``value`` is put in as it is: a function that replaces
    a staticmethod is given as one.

    Yields what ``owner.name`` gave before, None when there was none.

    :raises AttributeError, TypeError: where ``owner`` does not allow its attribute to be set;
        nothing is changed then

    >>> class Greeter:
    ...     @staticmethod
    ...     def greet():
    ...         return "hello"
    >>> with swapped(Greeter, "greet", staticmethod(lambda: "bye")) as before:
    ...     Greeter.greet(), before()
    ('bye', 'hello')
    >>> Greeter.greet(), type(vars(Greeter)["greet"]).__name__
    ('hello', 'staticmethod')
    """
    before, put_back = _put(owner, name, value)
    try:
        yield before
    finally:
        put_back()


def _put(owner: Any, name: str, value: Any) -> tuple[Any, Callable[[], None]]:
    """Sets the attribute; gives what it was, and what puts it back whatever has been done to it
    meanwhile.
    """
    own = getattr(owner, "__dict__", {})
    if isinstance(owner, (type, types.ModuleType)):
        held = own.get(name, _MISSING)
    elif inspect.isdatadescriptor(
        inspect.getattr_static(type(owner), name, None)
    ):  # a slot, a property
        held = getattr(owner, name, _MISSING)
    else:
        return _put_into_tables(owner, name, value)
    given = getattr(owner, name, None)
    setattr(owner, name, value)
    return given, lambda: _delete(owner, name) if held is _MISSING else setattr(owner, name, held)


def _put_into_tables(owner: Any, name: str, value: Any) -> tuple[Any, Callable[[], None]]:
    """Sets an attribute of an object that may keep it under another name, or in a table of its own.

    Returns the value before, and a function that puts it back.
    """
    own = getattr(owner, "__dict__", {})
    tables = [own, *(own[table] for table in _TABLES if isinstance(own.get(table), dict))]
    before = [dict(table) for table in tables]
    given = getattr(owner, name, None)  # this may fill a cached property
    setattr(owner, name, value)
    changed = [
        {
            key
            for key in held.keys() | table.keys()
            if held.get(key, _MISSING) is not table.get(key, _MISSING)
        }
        for table, held in zip(tables, before, strict=True)
    ]

    def put_back() -> None:
        for table, held, keys in zip(tables, before, changed, strict=True):
            for key in keys:
                _restore(table, held, key)

    return given, put_back


def _restore(table: dict[str, Any], held: dict[str, Any], key: str) -> None:
    if key not in held:
        table.pop(key, None)
    elif key in table:
        table[key] = held[key]
    else:  # at its old place: the parameters of a module have an order
        rest = dict(table)
        table.clear()
        table.update(
            {k: held[key] if k == key else rest.pop(k) for k in held if k == key or k in rest}
            | rest
        )


def _delete(owner: Any, name: str) -> None:
    with contextlib.suppress(AttributeError):
        delattr(owner, name)
