"""The collector of garbage, kept from looking again and again at what was there before.

A process with torch and transformers holds a million objects, and a trace or a conversion makes enough
new ones for several full collections, each of which visits all of them: 0.3 s, as long as the trace of a small
model.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

__all__ = ["collecting_new_objects"]


#: True inside of a block; ``gc.get_freeze_count`` would visit all objects that the block has frozen
_kept: bool = False


@contextlib.contextmanager
def collecting_new_objects() -> Iterator[None]:
    """Inside the block collections visit only objects that were made in it; a program that froze its
    objects itself, as one that forks does, is left alone.

    >>> with collecting_new_objects():
    ...     gc.get_freeze_count() > 0
    True
    >>> gc.get_freeze_count()
    0
    """
    global _kept
    if _kept or gc.get_freeze_count():
        yield
        return
    _kept = True
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        _kept = False
