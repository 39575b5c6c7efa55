"""Refuses an argument of a type that cannot be meant, before some inner function stumbles over
it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path as FilePath
from typing import Any, TypeGuard

from ..errors import ArgumentKindError, UsageError

__all__ = ["ArgsKwargs", "as_call", "as_path", "check_kind", "is_count", "is_int", "is_number"]

#: the arguments of a call as they are passed: by position, and by name
ArgsKwargs = tuple[tuple[Any, ...], dict[str, Any]]


def check_kind(value: object, kinds: Any, what: str, wanted: str) -> None:
    """Passes for a value of a type, of one of several, or of an abstract one.

    :raises ArgumentKindError: ``wrong-kind``

    >>> check_kind(3, str, "method_name", "the name of a method")
    Traceback (most recent call last):
    onlooker.core.errors.ArgumentKindError: method_name is 3. Give the name of a method. [wrong-kind]
    """
    if not isinstance(value, kinds):
        shown = value.__name__ if isinstance(value, type) else repr(value)
        raise ArgumentKindError(
            f"{what} is {shown if len(shown) <= 80 else f'a {type(value).__name__}'}.",
            slug="wrong-kind",
            hint=f"Give {wanted}.",
        )


def is_int(value: object) -> TypeGuard[int]:
    """True for a whole number; a bool is none."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_count(value: object) -> TypeGuard[int]:
    """True for a whole number that is not negative."""
    return is_int(value) and value >= 0


def is_number(value: object) -> TypeGuard[int | float]:
    """True for a whole number or a float; a bool is none."""
    return is_int(value) or isinstance(value, float)


def as_path(value: object, what: str) -> FilePath:
    """A path, from text or a path.

    :raises ArgumentKindError: ``wrong-kind``
    :raises UsageError: ``bad-path`` for a text that no system takes as a path

    """
    check_kind(value, (str, os.PathLike), what, "a path, as text or as a pathlib.Path")
    text: Any = os.fspath(value)  # type: ignore[call-overload]
    check_kind(text, str, what, "a path, as text or as a pathlib.Path")
    if not _is_path(text):
        raise UsageError(
            f"{what} is {text!r}, which no system takes as a path.",
            slug="bad-path",
            hint="Give a name without the character 0, of characters that can be written.",
        )
    return FilePath(text)


def _is_path(text: str) -> bool:
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def as_call(call: Any, index: int) -> ArgsKwargs:
    """A call that a user gave, as ``(args, kwargs)``; a dict has arguments by name.

    :raises ArgumentKindError: ``not-a-call``
    """
    if isinstance(call, Mapping):
        return (), dict(call)
    if (
        isinstance(call, tuple)
        and len(call) == 2
        and isinstance(call[0], tuple | list)
        and isinstance(call[1], Mapping)
    ):
        return tuple(call[0]), dict(call[1])
    raise ArgumentKindError(
        f"Call {index} is a {type(call).__name__}, and a call is (args, kwargs) or a dict of"
        " arguments by name.",
        slug="not-a-call",
        hint="Wrap the arguments: ((x, y), {}).",
    )
