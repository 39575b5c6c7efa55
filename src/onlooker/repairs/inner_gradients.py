"""A model that differentiates in its forward: forces of an energy, a score, a Jacobian.

torch.export traces above autograd, where no operator of a derivative is seen yet, and its trace ends in an
error as soon as the model calls ``torch.autograd.grad``, ``backward`` or a transform such as
``torch.func.grad``. Below autograd these are operators like all others. So after such an error the next
trace is made there: its graph has the operators that run, also those of the derivative.

Upstream: https://github.com/pytorch/pytorch/issues/153063
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from ..model_source.lines import comes_through
from ..patches.swap import swapped
from ..torch_internals.tracing import export_trace, proxy_tensor
from .loops.recurrent_steps import RECURRENT_STEPS
from .loops.rolled_loops import ROLLED_LOOPS
from .repair import Attempt, Repair, Retry

__all__ = ["INNER_GRADIENTS", "TRANSFORM_USED"]

#: files of torch whose functions compute derivatives
_FILES = (
    torch.autograd.__file__,
    torch.autograd.functional.__file__,
    str(Path(torch.__file__).parent / "_functorch" / "eager_transforms.py"),
)

#: our words for a constant that a transform of torch.func has wrapped
TRANSFORM_USED = "torch.func.grad, or another transform of torch.func, is used"
#: the words where the trace knows nothing of a result that a derivative computed
_UNTRACED = (
    "found a fake tensor in the exported program constant",
    "attempted to apply meta conversion to view functorch tensor",
    TRANSFORM_USED,
)


@contextlib.contextmanager
def _traced_below_autograd() -> Iterator[None]:
    """Inside the block torch.export traces the operators that autograd calls, and none above it."""
    make_fx = proxy_tensor.make_fx

    @functools.wraps(make_fx)
    def below(*args: Any, **kwargs: Any) -> Any:
        return make_fx(*args, **{**kwargs, "pre_dispatch": False})

    with swapped(export_trace, "make_fx", below):
        yield


def _differentiates(frame: FrameType) -> bool:
    """True in code of torch that computes derivatives."""
    return frame.f_code.co_filename in _FILES


def _in_a_derivative(attempt: Attempt) -> Retry | None:
    if attempt.error is None:
        return None
    is_untraced = any(words in attempt.message for words in _UNTRACED)
    if not is_untraced and not comes_through(attempt.error, _differentiates):
        return None
    if INNER_GRADIENTS in attempt.request.on and RECURRENT_STEPS not in attempt.request.off:
        # autograd sees nothing of the steps of a loop of torch
        return Retry(attempt.request.without_repair(RECURRENT_STEPS, ROLLED_LOOPS))
    return attempt.wants(INNER_GRADIENTS, INNER_GRADIENTS.note)


INNER_GRADIENTS = Repair(
    "inner gradients",
    "torch.export traces above autograd, where a derivative that the model takes in its forward has no"
    " operators yet, and ends in an error. The next trace is made below autograd.",
    until="tests/repairs/test_inner_gradients.py",
    link="https://github.com/pytorch/pytorch/issues/153063",
    retry=_in_a_derivative,
    note="the model computes derivatives, or uses vmap: the graph has the operators below autograd",
    block=lambda _: _traced_below_autograd(),
)
