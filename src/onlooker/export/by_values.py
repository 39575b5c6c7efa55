"""Branches on values: the side that the example takes is traced, and the program checks that a call takes it too.

``if mask.any():`` cannot be a guard on sizes, and torch refuses to trace it. Asked to, it computes the real values
beside the symbolic ones, decides by them, and writes each decision into the program as an assertion on the value. A
call that decides otherwise is refused, and gets a graph of its own where one was seen.

Upstream: https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_functorch/config.py,
``fake_tensor_propagate_real_tensors``, as ``torch.export.draft_export`` sets it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import torch
import torch._functorch.config
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

__all__ = ["decided_by_values", "depends_on_values"]

_LOGGER = "torch.fx.experimental.symbolic_shapes"


def depends_on_values(error: BaseException | None) -> bool:
    """True for an error of a trace that met a value where it needed a number."""
    while error is not None:
        if isinstance(error, (GuardOnDataDependentSymNode, DataDependentOutputException)):
            return True
        error = error.__cause__ or error.__context__
    return False


@contextlib.contextmanager
def decided_by_values() -> Iterator[None]:
    """Inside the block a trace decides by real values; what torch logs of each decision is not shown."""

    def shows(record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith("propagate_real_tensors")

    logger = logging.getLogger(_LOGGER)
    logger.addFilter(shows)
    try:
        with torch._functorch.config.patch(fake_tensor_propagate_real_tensors=True):
            yield
    finally:
        logger.removeFilter(shows)
