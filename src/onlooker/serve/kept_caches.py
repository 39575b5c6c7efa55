"""Caches that a program keeps itself from one call to the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..core.errors import RejectedCallError
from ..observing.bind import as_args_kwargs
from ..pytrees.layers import is_cache
from .dispatch import Dispatcher
from .state import MethodDispatcher

__all__ = ["CacheKeeper"]


class CacheKeeper:
    """Serves a call without a cache with the cache that the last such call gave; the first one, and
    the first one after :meth:`reset`, with an empty cache.

    A call that passes a cache is served with it, and changes nothing that is kept. ``names`` are
    the arguments.
    """

    def __init__(self, serving: Dispatcher | MethodDispatcher, names: Sequence[str]) -> None:
        self._serving = serving
        self._names = tuple(names)
        self._caches: dict[str, Any] = {}

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of the call; a refused call leaves the caches as they were.

        :raises RejectedCallError: ``call-does-not-bind``, ``call-refused``, ``cache-not-returned``
        """
        values = self._serving.bound(args, kwargs)
        lacking = [name for name in self._names if values.get(name) is None]
        kept = {name: self._caches[name] for name in lacking if name in self._caches}
        given = as_args_kwargs(self._serving.signature, {**values, **kept})
        result = self._serving.serve(*given)[2]
        made = {name: _cache_in(result, name) for name in lacking}
        for name, cache in made.items():
            if cache is None:
                raise RejectedCallError(
                    f"The call leaves {name} out, and the method does not return it: the program"
                    " cannot keep it from call to call.",
                    slug="cache-not-returned",
                    hint=f"Pass {name} in each call, or watch a method that returns it.",
                )
        self._caches.update(made)
        return result

    def reset(self) -> None:
        """Forgets the caches."""
        self._caches = {}


def _cache_in(result: Any, name: str) -> Any:
    """The cache of a result: the one of this name, or the first one; None where it has none."""
    if is_cache(result):
        return result
    parts = dict(result) if isinstance(result, Mapping) else dict(enumerate(result))
    return parts.get(name) or next((value for value in parts.values() if is_cache(value)), None)
