"""Puts a wrapper in the place of a method of one object, and takes it away without a trace."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from ..core.errors import UsageError

__all__ = ["replaced_method"]

Around = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


@contextlib.contextmanager
def replaced_method(obj: Any, name: str, around: Around) -> Iterator[None]:
    """Inside the block ``obj.name(...)`` runs ``around(original, args, kwargs)``.

    The signature is kept in ``__signature__``: ``generate`` of transformers reads it. On exit, also after an
    exception, ``vars(obj)`` is what it was, unless somebody else has put another method there meanwhile:
    that one is then left alone.

    :raises UsageError: ``no-such-method`` when the object has no such method
    """
    original = getattr(obj, name, None)
    if not callable(original):
        raise UsageError(
            f"{type(obj).__name__} does not have a method {name!r}.",
            slug="no-such-method",
            hint="Give the name of a method of the model as method_name.",
        )
    own = vars(obj)
    missing = object()
    before = own.get(name, missing)

    @functools.wraps(original)
    def watched(*args: Any, **kwargs: Any) -> Any:
        return around(original, args, kwargs)

    with contextlib.suppress(ValueError, TypeError):
        watched.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
    own[name] = watched
    try:
        yield
    finally:
        if own.get(name) is watched:
            if before is missing:
                del own[name]
            else:
                own[name] = before
