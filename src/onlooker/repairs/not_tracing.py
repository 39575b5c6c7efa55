"""A trace that the model does not know of: it goes the way that it goes in a call.

A model may ask whether it is traced (``torch.compiler.is_exporting()``, a tensor that is a
``FakeTensor``) to go around a branch on values. Where that way computes something else, the model
is told that it is not traced. The branch is then traced as any other, and the program checks it.
torch itself is answered as before.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from ..model_source.frames import is_code_of_model, is_own_code
from ..patches.swap import swapped
from ..torch_internals.fake_tensors import FakeTensor, subclasses
from .numbers.size_ints import SIZE_INTS, wants_int_first
from .repair import Attempt, Repair, Retry

__all__ = ["EQUAL_SIZES", "NOT_TRACING", "not_tracing"]

_QUESTIONS = ("is_exporting", "is_compiling", "is_dynamo_compiling")


class _OfFakes(type(FakeTensor)):  # type: ignore[misc]
    """No tensor is an instance for the code of a model; for torch, each one that is."""

    def __instancecheck__(cls, value: Any) -> bool:
        return not _asks_model() and isinstance(value, FakeTensor)


class _Fake(FakeTensor, metaclass=_OfFakes):
    """Stands for ``torch._subclasses.FakeTensor``."""


@contextlib.contextmanager
def not_tracing() -> Iterator[None]:
    """Inside the block the code of a model is told that it is not traced."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(swapped(subclasses, "FakeTensor", _Fake))
        for name in _QUESTIONS:
            if hasattr(torch.compiler, name):
                answer = _answered(getattr(torch.compiler, name))
                stack.enter_context(swapped(torch.compiler, name, answer))
        yield


def _answered(question: Callable[[], bool]) -> Callable[[], bool]:
    return lambda: not _asks_model() and question()


def _asks_model() -> bool:
    """True where the code that called our caller is that of a model; what stands in a trace for
    ``isinstance`` hands its question on.
    """
    frame = sys._getframe(2)
    while is_own_code(frame.f_code.co_filename) and frame.f_back is not None:
        frame = frame.f_back
    return is_code_of_model(frame.f_code.co_filename)


def _is_refused_in_trace(attempt: Attempt) -> Retry | None:
    """Wanted where a trace refuses sizes at which the model runs: what is refused, it does in a trace
    alone.
    """
    is_refused = isinstance(attempt.error, RuntimeError) and not attempt.depends_on_values
    if not is_refused or (attempt.is_side and EQUAL_SIZES in attempt.request.on):
        return None
    # sizes as ints were given up for this error, and are no reason for it
    request = replace(attempt.request, off=attempt.request.off - {SIZE_INTS})
    attempt = replace(attempt, request=request)
    return attempt.wants(NOT_TRACING, f"{NOT_TRACING.note}: {attempt.first_line}")


def _may_go_around_values(attempt: Attempt) -> Retry | None:
    """Wanted where a model that is not told of its trace branches on a value: equal sizes may keep it
    on the way without the branch, which serves more calls.
    """
    request = attempt.request
    if NOT_TRACING not in request.on or EQUAL_SIZES in request.on:
        return None
    if not attempt.depends_on_values or wants_int_first(attempt):
        return None
    return Retry(request.dropping(NOT_TRACING).with_repair(EQUAL_SIZES))


NOT_TRACING = Repair(
    "not tracing",
    "A model may ask whether it is traced, and compute something else then. Where it does, the code of the"
    " model is told that it is not traced, and the branch is traced as any other.",
    until="tests/trace/test_graph_check.py::test_a_trace_that_refuses_sizes_of_the_model_is_made_as_a_call",
    link="https://github.com/pytorch/pytorch/blob/v2.13.0/torch/compiler/__init__.py",
    retry=_is_refused_in_trace,
    block=lambda _: not_tracing(),
    note="`torch.compiler.is_exporting()` was made to return False for this model: with True it gives"
    " another result",
)
EQUAL_SIZES = Repair(
    "equal sizes",
    "A model that takes another way where two sizes differ may branch on a value there. The example then"
    " has those sizes equal that all calls had equal.",
    until="tests/trace/test_sides_of_decoders.py::test_a_side_that_no_equal_sizes_repair_is_given_up",
    retry=_may_go_around_values,
)
