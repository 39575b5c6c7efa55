"""Runs that ended since there was no memory: they say nothing of the model."""

from __future__ import annotations

import torch

__all__ = ["is_out_of_memory"]

#: what torch's allocator of the CPU says, whose error has no class of its own
_WORDS = ("can't allocate memory", "not enough memory", "out of memory", "Cannot allocate memory")


def is_out_of_memory(error: BaseException) -> bool:
    """True for the errors of Python, of torch on the CPU and of torch on other devices.

    >>> is_out_of_memory(MemoryError()), is_out_of_memory(RuntimeError("shapes do not match"))
    (True, False)
    """
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in _WORDS)
