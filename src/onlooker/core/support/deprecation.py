"""Public names that will go: each works for two more versions, and says what to use."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import TypeVar

from ..errors import OnlookerWarning

__all__ = ["OnlookerDeprecationWarning", "deprecated"]

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., object])


class OnlookerDeprecationWarning(OnlookerWarning, DeprecationWarning):
    """A name of onlooker is used that will go."""


def deprecated(
    instead: str, *, since: str, removed_in: str
) -> Callable[[AnyFunction], AnyFunction]:
    """A decorator for a function or method that will go: each call warns at the line of its caller.

    ``instead`` is what to use, ``since`` the first version that warns, ``removed_in`` the first one
    without it.
    """

    def decorate(function: AnyFunction) -> AnyFunction:
        @functools.wraps(function)
        def warned(*args: object, **kwargs: object) -> object:
            warnings.warn(
                OnlookerDeprecationWarning(
                    f"{function.__qualname__.rpartition('.')[2]} is deprecated since onlooker"
                    f" {since}, and will be gone in {removed_in}.",
                    slug="deprecated",
                    hint=f"Use {instead}.",
                ),
                stacklevel=2,
            )
            return function(*args, **kwargs)

        return warned  # type: ignore[return-value]

    return decorate
