"""Calls that are made in children of ``os.fork``: a child has a copy of the store, and the parent
sees none of it.

The workers of a loader of data, or of a server that forks, are such children. They count their
calls in a page of memory that they share with the parent, so that the parent can say how many it
did not see.
"""

from __future__ import annotations

import mmap
import os
import struct
import weakref

__all__ = ["ForkedCalls"]

_SLOTS = 8192
_COUNT = struct.Struct("q")

_living: weakref.WeakSet[ForkedCalls] = weakref.WeakSet()


class ForkedCalls:
    """Counts the calls of one method that other processes have made.

    ``is_child`` is True in a process that was forked since: its calls are :meth:`counted <count>`.
    """

    def __init__(self) -> None:
        self.is_child: bool = False
        self._shared: mmap.mmap | None = None
        self._own = 0
        _living.add(self)

    def share(self) -> None:
        """Makes the page of memory; children of this process write there."""
        if self._shared is None:
            self._shared = mmap.mmap(-1, _SLOTS * _COUNT.size)

    def enter(self) -> None:
        """Notes that this process is a child; each child has a place of its own in the page."""
        self.is_child = True
        self._own = os.getpid() % _SLOTS * _COUNT.size

    def count(self) -> None:
        """One more call of this child."""
        if self._shared is not None:
            (number,) = _COUNT.unpack_from(self._shared, self._own)
            _COUNT.pack_into(self._shared, self._own, number + 1)

    def texts(self) -> tuple[str, ...]:
        """Returns sentences about calls that were not seen here; nothing where all calls were made
        in this process.
        """
        if self._shared is None:
            return ()
        counts = [number for (number,) in _COUNT.iter_unpack(self._shared)]
        if self.is_child:
            counts[self._own // _COUNT.size] = 0
        total = sum(counts)
        return (f"{total} calls in forked processes were not seen",) if total else ()


def _before_fork() -> None:
    for forked_calls in list(_living):
        forked_calls.share()


def _after_in_child() -> None:
    for forked_calls in list(_living):
        forked_calls.enter()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_after_in_child)
