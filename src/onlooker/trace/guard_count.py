"""Ends a trace that meets guard after guard: each makes the next one slower, and the program is
slow to call.

A model that pads its input to multiples meets hundreds of them, most about sizes of 0 or 1 that no
example has.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

__all__ = ["TooManyGuardsError", "fewer_guards", "most_guards"]

#: models whose export is quick meet some dozens, and per input three or so that tie its sizes to
#: those of others
_MOST_GUARDS, _MOST_PER_INPUT = 80, 4


def most_guards(n_inputs: int) -> int:
    """The guards that a trace of a model with so many inputs may meet: a deep cache has many, all
    of them quick.

    >>> most_guards(2), most_guards(200)
    (80, 800)
    """
    return max(_MOST_GUARDS, _MOST_PER_INPUT * n_inputs)


class TooManyGuardsError(Exception):
    """The trace was ended; never seen by a user."""


class _Count(TorchFunctionMode):
    """Counts the guards before every function of torch."""

    def __init__(self, environment: Any, most: int) -> None:
        super().__init__()
        self._environment, self._most = environment, most

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if len(self._environment.guards) > self._most:
            raise TooManyGuardsError(f"the trace met more than {self._most} guards")
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def fewer_guards(inputs: Iterable[Any], most: int | None) -> Iterator[None]:
    """Ends the trace inside the block by an error when it meets more than ``most`` guards;
    outside one, nothing.
    """
    environment = None if most is None else next(_environments(inputs), None)
    if most is None or environment is None:
        yield
        return
    with _Count(environment, most):
        yield


def _environments(inputs: Iterable[Any]) -> Iterator[Any]:
    """The shape environments of symbolic sizes."""
    for value in inputs:
        for size in value.shape if isinstance(value, torch.Tensor) else (value,):
            if isinstance(size, torch.SymInt):
                yield size.node.shape_env
