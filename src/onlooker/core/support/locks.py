"""Locks that a fork cannot leave locked.

A child of ``os.fork`` has only the thread that forked: a lock that another thread held at that
moment stays locked in the child for ever. So a fork waits until the locks are free, for a second at
most, and the child gets new ones.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from typing import Any

__all__ = ["lock_of"]

_PATIENCE = 1.0

_owners: dict[int, weakref.ref[Any]] = {}
#: what a forking thread holds while it forks
_forking = threading.local()


def lock_of(owner: Any) -> Any:
    """A lock for ``owner``, an object or a module that keeps it as its attribute ``_lock``.

    >>> class Counter:
    ...     def __init__(self):
    ...         self._lock = lock_of(self)
    >>> with Counter()._lock:
    ...     pass
    """
    key = id(owner)
    _owners[key] = weakref.ref(owner, lambda _: _owners.pop(key, None))
    return threading.RLock()


def _living() -> list[Any]:
    """The owners, the outermost first: a lock that is taken inside of another one belongs to a
    younger owner.
    """
    owners = [reference() for reference in list(_owners.values())]
    return [owner for owner in owners if owner is not None and hasattr(owner, "_lock")]


def _before_fork() -> None:
    locks = [owner._lock for owner in _living()]
    _forking.locks = [lock for lock in locks if lock.acquire(timeout=_PATIENCE)]


def _after_in_parent() -> None:
    for lock in reversed(_forking.locks):
        lock.release()


def _after_in_child() -> None:
    for owner in _living():
        with contextlib.suppress(Exception):
            owner._lock = threading.RLock()


if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child
    )
