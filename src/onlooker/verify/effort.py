"""The work that verifying may take: what exporting the model costs, or some watched calls where
these are more.

The trials are small calls, and so all of them are made of almost every model. Where they are no less
work than what was watched, some of every kind are made, as many as the bound allows.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import torch

from ..core.verdict import Focus
from ..lab.work import CountedWork, parameters_of, rows_of
from ..pytrees.open import open_arguments
from .trials import Trial

__all__ = ["Effort"]

#: multiply-adds that take no longer than the export of one module, of one operator, and of the least model
_OF_MODULE, _OF_OPERATOR, _OF_LEAST = 700_000_000, 80_000_000, 10_000_000_000
#: a run reads each parameter once, which takes as long as multiplying it with so many rows
_LEAST_ROWS = 8
#: trials may be as much work as so many times the largest observed call
_OF_WATCHED = 8
#: kinds of trials that nobody asked for
_BOUNDED = frozenset(Focus) - {Focus.OBSERVED, Focus.GIVEN, Focus.DRAWN, Focus.REPEATED}


class Effort:
    """Chooses which trials are made.

    The observed calls and given sizes are always tried. Of each other kind, and of each graph, at
    least one trial is made that the model takes, and further ones until their work comes to the
    bound. It counts multiply-adds, and so is the same on every machine: the parameters times the rows
    of a trial, or more where the first runs of each kind show that the model does more. No bound is
    put on trials whose number the user gave: then ``bounded`` is False.

    ``seconds`` is the time after which only the observed calls are begun, counted from
    :meth:`begin`.
    """

    def __init__(self, model: Any, *, bounded: bool = True, seconds: float | None = None) -> None:
        modules = list(model.modules()) if isinstance(model, torch.nn.Module) else []
        self._of_export = max(_OF_LEAST, _OF_MODULE * len(modules))
        self._least = _LEAST_ROWS * parameters_of(model)
        self._per_row, self._of_calls = parameters_of(model), 0
        self._spent, self._most_rows = 0, 0
        self._plans: set[str] = set()
        self._kinds: set[Focus] = set()
        self._counted: set[str] = set()
        self._bounded, self._seconds = bounded, seconds
        self._end: float | None = None

    def begin(self) -> None:
        """Starts the clock; a verification that goes on has the whole bound again."""
        self._end = None if self._seconds is None else time.monotonic() + self._seconds
        self._spent = 0
        self._kinds.clear()

    def is_over(self) -> bool:
        """True when the time has ended."""
        return self._end is not None and time.monotonic() >= self._end

    def wants(self, trial: Trial) -> bool:
        """True for a trial that shall be made."""
        name = _graph_of(trial)
        if trial.focus is Focus.OBSERVED:
            return True
        if self.is_over():
            return False
        if not self._bounded or trial.focus not in _BOUNDED:
            return True
        if trial.focus not in self._kinds or (
            trial.focus is Focus.SIZES and name not in self._plans
        ):
            return True
        bound = max(self._of_export, _OF_WATCHED * self._work_of(self._most_rows))
        return self._spent + self._work_of(_rows(trial)) <= bound

    def is_counted(self, trial: Trial) -> bool:
        """True for the first unseen trial of a graph, whose work is counted when it runs."""
        is_bounded = self._bounded and trial.focus in _BOUNDED
        return is_bounded and _graph_of(trial) not in self._counted

    @contextlib.contextmanager
    def counted(self, trial: Trial) -> Iterator[None]:
        """Inside the block the model runs a trial; the first unseen one of each graph is counted."""
        if not self.is_counted(trial):
            yield
            return
        name = _graph_of(trial)
        with CountedWork() as run:
            yield
        per_row = run.of_numbers // _rows(trial)
        self._per_row = max(self._per_row, per_row) if self._counted else per_row
        self._of_calls = max(self._of_calls, run.of_calls)
        self._of_export = max(self._of_export, _OF_OPERATOR * run.count)
        self._counted.add(name)

    def note(self, trial: Trial, *, refused: bool = False) -> None:
        """Counts a trial that the model takes; one that the program ``refused`` says nothing of its
        graph, which needs another one.
        """
        if trial.focus is Focus.OBSERVED:
            self._most_rows = max(self._most_rows, _rows(trial))
        if trial.focus in _BOUNDED:
            self._spent += self._work_of(_rows(trial))
            self._kinds.add(trial.focus)
        if trial.focus in _BOUNDED and not refused:
            self._plans.add(_graph_of(trial))

    def _work_of(self, rows: int) -> int:
        """The multiply-adds of model and program."""
        return 2 * (self._of_calls + max(self._per_row * rows, self._least, 1))


def _graph_of(trial: Trial) -> str:
    return trial.plan.name if trial.plan is not None else ""


def _rows(trial: Trial) -> int:
    return rows_of(dict(open_arguments(trial.arguments).items()))
