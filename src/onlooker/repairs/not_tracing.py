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
from typing import Any

import torch

from ..model_source.frames import is_code_of_model
from ..patches.swap import swapped
from ..torch_internals.fake_tensors import FakeTensor, subclasses

__all__ = ["untold_of_traces"]

_QUESTIONS = ("is_exporting", "is_compiling", "is_dynamo_compiling")


class _OfFakes(type(FakeTensor)):  # type: ignore[misc]
    """No tensor is an instance for the code of a model; for torch, each one that is."""

    def __instancecheck__(cls, value: Any) -> bool:
        return not _asks_model() and isinstance(value, FakeTensor)


class _Fake(FakeTensor, metaclass=_OfFakes):
    """What stands for ``torch._subclasses.FakeTensor``."""


@contextlib.contextmanager
def untold_of_traces() -> Iterator[None]:
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
    """True where the code that called our caller is that of a model."""
    return is_code_of_model(sys._getframe(2).f_code.co_filename)
