"""Trials in other processes: each loads the saved program and builds the model by the name of a function.

The tally is made by one process, in the order of the trials, as ever, and it makes trials while the
workers do: what a worker found is taken in the place of a trial there. Only agreement is taken, and calls
that the model itself refuses. All else, and what no worker has answered for, is tried where the tally is
made. So neither the number of the workers nor what becomes of one of them changes the tally.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from ..core.errors import UsageError
from ..core.support.locks import lock_of
from ..core.support.progress import tell
from ..lab.runner import ModelRunner
from .effects import Effects
from .effort import Effort
from .progress import TrialResult
from .trials import Trial

__all__ = ["Elsewhere", "Found", "Spread", "WorkerAnswer", "spread_trials", "trying"]

logger = logging.getLogger(__name__)
_lock = lock_of(sys.modules[__name__])

#: workers are given the trials in about so many parts: a quick one is given more of them
_PARTS = 32


class Found(NamedTuple):
    """The result of one trial that a worker made; the trial is named as well."""

    number: int
    label: str
    sizes: tuple[tuple[str, int], ...]
    tried: TrialResult | None

    def is_of(self, trial: Trial) -> bool:
        """True where the trial is the same."""
        return (self.label, self.sizes) == (trial.label, trial.sizes)


class WorkerAnswer(NamedTuple):
    """The results of some trials that a worker made, or why it could make none."""

    found: tuple[Found, ...] = ()
    problem: str = ""


class Spread(NamedTuple):
    """The workers that make trials: ``work(task, numbers)`` is what a worker of the executor runs."""

    executor: Any
    work: Callable[[Any, Sequence[int]], WorkerAnswer]
    task: Any


def trying() -> Any:
    """The lock that is held while a trial is made: a worker may be a thread of this process, and
    random numbers are of all its threads.
    """
    return _lock


class Elsewhere:
    """What workers find of some trials, while this process makes trials too.

    This process begins with the first part of the trials, workers with the last one; they are given one
    part more than there are workers, and the next when one has ended. So all of them are busy until
    they meet, whenever each of them begins. Of an executor that does not say how many workers it has,
    the workers make all.
    """

    def __init__(self, spread: Spread, numbers: Sequence[int], seconds: float | None) -> None:
        size = max(1, len(numbers) // _PARTS)
        self._parts = [numbers[begin : begin + size] for begin in range(0, len(numbers), size)]
        self._part_of = {number: n for n, part in enumerate(self._parts) for number in part}
        self._spread = spread
        self._end = None if seconds is None else time.monotonic() + seconds
        #: the parts from the first one on that nobody has, of which this process makes ``_own``
        self._left, self._own = len(self._parts), 0
        self._futures: list[Any] = []
        self._found: Mapping[int, Found] | None = None
        self._give_away()

    def get(self, number: int) -> Found | None:
        """What a worker has found of a trial; None where it is to be made here.

        :raises UsageError: ``bad-worker`` where a worker has another model, or cannot begin
        """
        self._give_away()
        place = self._part_of.get(number)
        if place is None or place < self._left:
            self._own = self._own if place is None else max(self._own, place + 1)
            return None
        if self._found is None:
            self._found = self._answered()
        return self._found.get(number)

    def _give_away(self) -> None:
        """Gives the last parts that nobody has to workers that wait for one."""
        known = getattr(self._spread.executor, "_max_workers", None)
        most = known + 1 if isinstance(known, int) else len(self._parts)
        busy = (
            sum(1 for future in self._futures if not future.done()) if self._left > self._own else 0
        )
        while self._left > self._own and busy < most:
            part = self._parts[self._left - 1]
            try:
                self._futures.append(
                    self._spread.executor.submit(self._spread.work, self._spread.task, part)
                )
            except Exception as error:  # a pool that is broken takes nothing: all is made here
                logger.warning("the executor takes no trials any more: %s", error)
                self._own = self._left
                return
            self._left -= 1
            busy += 1

    def finish(self) -> None:
        """Waits for the workers, should no trial have asked for what they found.

        :raises UsageError: ``bad-worker``
        """
        if self._futures and self._found is None:
            self._found = self._answered()

    def close(self) -> None:
        """Takes back the parts that no worker has begun."""
        for future in self._futures:
            future.cancel()

    def _answered(self) -> Mapping[int, Found]:
        """The agreement that workers found; nothing where a trial has failed in any of them, since
        its place among the others may matter.

        :raises UsageError: ``bad-worker``
        """
        found: dict[int, Found] = {}
        for answer in _answers(self._futures, self._end):
            if answer.problem:
                raise UsageError(
                    f"A worker cannot try the program: {answer.problem}",
                    slug="bad-worker",
                    hint="build= names a function that gives the same model in every process.",
                )
            found |= {one.number: one for one in answer.found}
        checks = [check for one in found.values() if one.tried for check in one.tried.checks]
        if not all(check.passed for check in checks):
            logger.info("a trial has failed in a worker: what is left is made here, one by one")
            return {}
        return {
            number: one
            for number, one in found.items()
            if one.tried is not None and not one.tried.refused and not one.tried.drawn
        }


@contextlib.contextmanager
def spread_trials(
    spread: Spread,
    subject: ModelRunner,
    trials: Iterable[Trial],
    effort: Effort,
    seconds: float | None,
) -> Iterator[Elsewhere]:
    """Gives the trials that ``effort`` wants to workers, for the time of the block.

    What they found is read in the block.
    """
    elsewhere = Elsewhere(spread, list(_wanted(subject, trials, effort)), seconds)
    try:
        yield elsewhere
    finally:
        elsewhere.close()


def _wanted(subject: ModelRunner, trials: Iterable[Trial], effort: Effort) -> Iterator[int]:
    """The numbers of the trials that are made where the model takes all of them, and the program
    refuses none. The first of each graph is run, so that its work is known.
    """
    effects = Effects(subject, 0.0)
    effort.begin()
    for number, trial in enumerate(trials):
        if trial.problem or not effort.wants(trial):
            continue
        if effort.is_counted(trial):
            with contextlib.suppress(Exception), effort.counted(trial):
                effects.result_of_model(trial.arguments)
        effort.note(trial)
        yield number


def _answers(futures: Sequence[Any], end: float | None) -> Iterator[WorkerAnswer]:
    """The answers of workers; that of a worker that has gone is left out."""
    for number, future in enumerate(futures):
        tell("verifying in workers", number, len(futures))
        try:
            yield _result(future, end)
        except Exception as error:
            logger.warning("a worker has not answered: %s: %s", type(error).__name__, error)


def _result(future: Any, end: float | None) -> WorkerAnswer:
    if end is None or not isinstance(future, Future):
        answer: WorkerAnswer = future.result()
        return answer
    timed: WorkerAnswer = future.result(timeout=max(0.0, end - time.monotonic()))
    return timed
