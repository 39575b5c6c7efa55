"""Puts a wrapper in the place of a method of one object, and takes it away without a trace."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from ..core.errors import UsageError

__all__ = ["replaced_method"]

_MARK = "__onlooker_state__"
_MISSING = object()
Around = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


@contextlib.contextmanager
def replaced_method(obj: Any, name: str, around: Around) -> Iterator[None]:
    """Inside the block ``obj.name(...)`` runs ``around(original, args, kwargs)``.

    The signature is kept in ``__signature__``: ``generate`` of transformers reads it. On exit, also after an
    exception, ``vars(obj)`` is what it was, unless somebody else has put another method there meanwhile:
    that one is then left alone. Blocks on one object may overlap in any order.

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
    state = _State(own.get(name, _MISSING))

    @functools.wraps(original)
    def watched(*args: Any, **kwargs: Any) -> Any:
        return around(original, args, kwargs) if state.active else original(*args, **kwargs)

    with contextlib.suppress(ValueError, TypeError):
        watched.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
    watched.__dict__[_MARK] = state
    own[name] = watched
    try:
        yield
    finally:
        state.active = False
        if own.get(name) is watched:
            _put_back(own, name, state.before)


class _State:
    """Whether a wrapper still watches, and what stood in its place before."""

    def __init__(self, before: Any) -> None:
        self.before = before
        self.active = True


def _put_back(own: dict[str, Any], name: str, before: Any) -> None:
    """Restores what stood there before; a wrapper of a block that has ended meanwhile is passed over."""
    while isinstance(state := getattr(before, "__dict__", {}).get(_MARK), _State) and not state.active:
        before = state.before
    if before is _MISSING:
        del own[name]
    else:
        own[name] = before
