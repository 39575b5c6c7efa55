"""Ends a trace that meets guard after guard: each makes the next one slower, and the program is
slow to call.

A model that pads its input to multiples meets hundreds of them, most about sizes of 0 or 1 that no
example has.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import torch

from ..torch_internals.sizes import shape_config
from .numbers.padded_sizes import padded_sizes_are_multiples
from .repair import Attempt, Repair, Retry
from .trace_mode import Reader

__all__ = ["UNGUARDED", "GuardCount", "TooManyGuardsError", "usual_guards"]

#: models whose export is quick meet some dozens, and per input three or so that tie its sizes to
#: those of others
_MOST_GUARDS, _MOST_PER_INPUT = 80, 4


def usual_guards(n_inputs: int) -> int:
    """The guards that a trace of a model with so many inputs may meet: a deep cache has many, all
    of them quick.

    >>> usual_guards(2), usual_guards(200)
    (80, 800)
    """
    return max(_MOST_GUARDS, _MOST_PER_INPUT * n_inputs)


class TooManyGuardsError(Exception):
    """The trace was ended; never seen by a user. ``shares`` says in which part of the guards the size of an
    axis stands, by the position of its input and its dimension.
    """

    shares: Mapping[tuple[int, int], float] = MappingProxyType({})


class GuardCount(Reader):
    """Ends a trace by an error when it meets more than ``most`` guards; outside of a trace, and for
    None, nothing.

    ``inputs`` are those of the model, whose sizes are symbolic in a trace.
    """

    def __init__(self, inputs: Iterable[Any], most: int | None) -> None:
        self._inputs = list(inputs)
        self._environment: Any = next(_environments(self._inputs), None)
        self._most = most
        if most is None or self._environment is None:
            self.functions = ()

    def on_call(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Counts the guards, and hands the function on."""
        if self._most is not None and len(self._environment.guards) > self._most:
            error = TooManyGuardsError(f"the trace met more than {self._most} guards")
            error.shares = self._shares()
            raise error
        return func(*args, **kwargs)

    def _shares(self) -> dict[tuple[int, int], float]:
        guards = [guard.expr.free_symbols for guard in self._environment.guards]
        found: dict[tuple[int, int], float] = {}
        for number, value in enumerate(self._inputs):
            for dim, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
                own: set[Any] = set()
                if isinstance(size, torch.SymInt):
                    own = size.node.expr.free_symbols
                count = sum(not own.isdisjoint(symbols) for symbols in guards)
                found[number, dim] = count / len(guards)
        return found


def _environments(inputs: Iterable[Any]) -> Iterator[Any]:
    """The shape environments of symbolic sizes."""
    for value in inputs:
        for size in value.shape if isinstance(value, torch.Tensor) else (value,):
            if isinstance(size, torch.SymInt):
                yield size.node.shape_env


def _has_too_many(attempt: Attempt) -> Retry | None:
    if not isinstance(attempt.error, TooManyGuardsError):
        return None
    return attempt.wants(UNGUARDED, f"asked again without guards on 0 and 1: {attempt.error}")


@contextlib.contextmanager
def _general_sides() -> Iterator[None]:
    with shape_config.patch(backed_size_oblivious=True), padded_sizes_are_multiples():  # type: ignore[attr-defined]
        yield


UNGUARDED = Repair(
    "no guards on 0 and 1",
    "A model that pads to multiples meets hundreds of guards, most about sizes of 0 or 1 that no example"
    " has. Each makes the next one slower. torch is asked to take the general side of these comparisons,"
    " and a size with its padding is written as a multiple.",
    until="tests/graphs/test_guards.py::test_a_trace_that_meets_too_many_guards_is_asked_without_those_on_0_and_1",
    link="https://github.com/pytorch/pytorch/blob/v2.13.0/torch/fx/experimental/_config.py",
    retry=_has_too_many,
    block=lambda _: _general_sides(),
)
