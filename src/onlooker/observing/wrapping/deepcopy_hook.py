"""Deep copies that are made of an object while it is watched."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from ...core.support.locks import lock_of
from .wrapper import MISSING

__all__ = ["noted_copies", "unnoted_copies"]

_NAME = "__deepcopy__"
_lock = lock_of(sys.modules[__name__])


class _Silence(threading.local):
    """Says of this thread whether its copies are noted by nobody."""

    holds = False


_silence = _Silence()


@contextlib.contextmanager
def unnoted_copies() -> Iterator[None]:
    """Inside the block deep copies that this thread makes are noted by nobody: they are ours."""
    before, _silence.holds = _silence.holds, True
    try:
        yield
    finally:
        _silence.holds = before


@contextlib.contextmanager
def noted_copies(
    obj: Any, is_watched: Callable[[Any], bool], note: Callable[[Any], None]
) -> Iterator[None]:
    """Inside the block ``note`` is given every deep copy of an object of the class of ``obj`` for
    which ``is_watched`` is true.

    The class has a ``__deepcopy__`` meanwhile, which copies as before. Nothing is noted of a class
    that cannot be changed. Blocks may overlap in any order.
    """
    cls = type(obj)
    watcher = (is_watched, note)
    with _lock:
        stand = _stand(cls)
        if stand is not None:
            stand.watchers += (watcher,)
    try:
        yield
    finally:
        with _lock:
            if stand is not None:
                left = list(stand.watchers)
                left.remove(watcher)
                stand.watchers = tuple(left)
                if not left and vars(cls).get(_NAME) is stand:
                    _put(cls, stand.before)


def _stand(cls: type) -> _CopyStand | None:
    known = vars(cls).get(_NAME)
    if isinstance(known, _CopyStand):
        return known
    made = _CopyStand(vars(cls).get(_NAME, MISSING), inspect.getattr_static(cls, _NAME, MISSING))
    with contextlib.suppress(Exception):  # a class that cannot be changed, whatever it raises
        _put(cls, made)
    return made if vars(cls).get(_NAME) is made else None


def _put(cls: type, value: Any) -> None:
    delattr(cls, _NAME) if value is MISSING else setattr(cls, _NAME, value)


class _CopyStand:
    """Stands for ``__deepcopy__``: objects that nobody watches have the one that they had, or none."""

    def __init__(self, before: Any, found: Any) -> None:
        self.before = before
        self.watchers: tuple[tuple[Callable[[Any], bool], Callable[[Any], None]], ...] = ()
        self._found = found
        self._inside = threading.local()

    def __get__(self, obj: Any, cls: Any = None) -> Any:
        if obj is None or _silence.holds or id(obj) in self._copied_now():
            return self._original(obj, cls)
        notes = [note for is_watched, note in self.watchers if is_watched(obj)]
        if not notes:
            return self._original(obj, cls)
        return functools.partial(self._copy, obj, notes)

    def _original(self, obj: Any, cls: Any) -> Any:
        if self._found is MISSING:
            raise AttributeError(_NAME)
        bind = getattr(type(self._found), "__get__", None)
        return self._found if bind is None else bind(self._found, obj, cls)

    def _copied_now(self) -> set[int]:
        found: set[int] = self._inside.__dict__.setdefault("objects", set())
        return found

    def _copy(
        self, obj: Any, notes: list[Callable[[Any], None]], memo: dict[int, Any] | None = None
    ) -> Any:
        """The copy as it is made without us: while it is made, the object has no stand."""
        now = self._copied_now()
        now.add(id(obj))
        try:
            made = copy.deepcopy(obj, memo)
        finally:
            now.discard(id(obj))
        for note in notes:
            note(made)
        return made
