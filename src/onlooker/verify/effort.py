"""How much work verifying may be: about what tracing the model costs.

The runs of a small model cost nothing beside its trace, and all trials are made. Those of a large
model are bounded: some of every kind are made, as many as the bound allows.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch

from ..core.structure import Tree
from ..core.verdict import Focus
from ..lab.work import CountedWork, parameters_of, rows_of
from ..pytrees.open import open_arguments
from .trials import Trial

__all__ = ["Effort"]

#: multiply-adds that take about as long as the trace of one module, and of one operator
_OF_MODULE, _OF_OPERATOR = 1_000_000_000, 40_000_000
#: a run reads each parameter once, which takes as long as multiplying it with so many rows
_LEAST_ROWS = 8
#: results of so many bytes are large, and a trial may be so much larger than the observed calls
_LARGE, _BEYOND = 2**24, 1.25
#: kinds of trials that nobody asked for, each of which gets an equal share
_BOUNDED = frozenset(Focus) - {Focus.OBSERVED, Focus.GIVEN, Focus.DRAWN, Focus.REPEATED}


class Effort:
    """Which trials are made.

    The observed calls and given sizes are always tried. Of each other kind, and of each graph, at
    least one trial is made that the model takes. Where the results of the observed calls are large,
    no trial is much larger than they are. The bounds count multiply-adds, and so are the same on
    every machine: the parameters times the rows of a trial, or more where the first runs of each
    kind show that the model does more. No bound is put on trials whose number the user gave: then
    ``bounded`` is False.

    ``seconds`` is the time after which only the observed calls are begun, counted from
    :meth:`begin`.
    """

    def __init__(self, model: Any, *, bounded: bool = True, seconds: float | None = None) -> None:
        modules = list(model.modules()) if isinstance(model, torch.nn.Module) else []
        self._of_trace = _OF_MODULE * len(modules)
        self._per_row, self._of_calls = parameters_of(model), 0
        self._spent: Counter[Focus] = Counter()
        self._plans: set[str] = set()
        self._counted: set[Focus] = set()
        self._largest, self._bytes = 0, 0
        self._bounded, self._seconds = bounded, seconds
        self._end: float | None = None

    def begin(self) -> None:
        """Starts the clock; a verification that goes on has the whole share again."""
        self._end = None if self._seconds is None else time.monotonic() + self._seconds
        self._spent.clear()

    def wants(self, trial: Trial) -> bool:
        """True for a trial that shall be made."""
        name = trial.plan.name if trial.plan is not None else ""
        if trial.focus is Focus.OBSERVED:
            return True
        if self._end is not None and time.monotonic() >= self._end:
            return False
        if not self._bounded or trial.focus not in _BOUNDED:
            return True
        work = self._work_of(trial)
        first = not self._spent[trial.focus] or name not in self._plans
        is_small = self._bytes < _LARGE or work <= _BEYOND * self._largest
        is_needed = trial.focus is Focus.SIZES and name not in self._plans
        is_cheap = first or self._spent[trial.focus] + work <= self._of_trace // len(_BOUNDED)
        return is_needed or (is_small and is_cheap)

    @contextlib.contextmanager
    def counted(self, trial: Trial) -> Iterator[None]:
        """Inside the block the model runs a trial; the first run for each kind is counted."""
        if not self._bounded or trial.focus in self._counted:
            yield
            return
        with CountedWork() as run:
            yield
        self._counted.add(trial.focus)
        self._per_row = max(self._per_row, run.of_numbers // _rows(trial))
        self._of_calls = max(self._of_calls, run.of_calls)
        self._of_trace = max(self._of_trace, _OF_OPERATOR * run.n_operators)

    def note(self, trial: Trial, result: Tree[Any], *, refused: bool = False) -> None:
        """Counts a trial that the model takes; one that the program ``refused`` says nothing of its
        graph, which needs another one.
        """
        if trial.focus is Focus.OBSERVED:
            tensors = [leaf for leaf in result.leaves if isinstance(leaf, torch.Tensor)]
            self._bytes = max(self._bytes, sum(tensor.nbytes for tensor in tensors))
            self._largest = max(self._largest, self._work_of(trial))
        if trial.focus in _BOUNDED:
            self._spent[trial.focus] += self._work_of(trial)
        if trial.focus in _BOUNDED and not refused:
            self._plans.add(trial.plan.name if trial.plan is not None else "")

    def _work_of(self, trial: Trial) -> int:
        """The multiply-adds of model and program."""
        return 2 * max(self._of_calls + self._per_row * _rows(trial), 1)


def _rows(trial: Trial) -> int:
    tree = open_arguments(trial.arguments)
    return max(rows_of(dict(tree.items())), _LEAST_ROWS)
