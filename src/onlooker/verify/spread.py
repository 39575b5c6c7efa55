"""Trials in other processes: each loads the saved program and builds the model by the name of a function.

The tally is made by one process, in the order of the trials, as ever: what a worker found is taken in
the place of a trial there. Only agreement is taken, and calls that the model itself refuses. All else,
and what no worker has answered for, is tried where the tally is made. So neither the number of the
workers nor what becomes of one of them changes the tally.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from ..core.errors import UsageError
from ..core.support.progress import tell
from ..lab.runner import ModelRunner
from .effects import Effects
from .effort import Effort
from .progress import TrialResult
from .trials import Trial

__all__ = ["Found", "Spread", "WorkerAnswer", "spread_trials"]

logger = logging.getLogger(__name__)

#: workers are given the trials in about so many parts: a quick one is given more of them
_PARTS = 16


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


def spread_trials(
    spread: Spread,
    subject: ModelRunner,
    trials: Iterable[Trial],
    effort: Effort,
    seconds: float | None = None,
) -> Mapping[int, Found]:
    """Returns what workers found of the trials that ``effort`` wants, by their numbers; nothing
    where any of them has failed, since its place among the others may matter.

    :raises UsageError: ``bad-worker`` where a worker has another model, or cannot begin
    """
    numbers = list(_wanted(subject, trials, effort))
    size = max(1, len(numbers) // _PARTS)
    parts = [numbers[begin : begin + size] for begin in range(0, len(numbers), size)]
    end = None if seconds is None else time.monotonic() + seconds
    found: dict[int, Found] = {}
    for answer in _answers(spread, parts, end):
        if answer.problem:
            raise UsageError(
                f"A worker cannot try the program: {answer.problem}",
                slug="bad-worker",
                hint="build= names a function that gives the same model in every process.",
            )
        found |= {one.number: one for one in answer.found}
    checks = [check for one in found.values() if one.tried for check in one.tried.checks]
    if not all(check.passed for check in checks):
        logger.info("a trial has failed in a worker: all are made here, one after the other")
        return {}
    return {
        number: one
        for number, one in found.items()
        if one.tried is not None and not one.tried.refused and not one.tried.drawn
    }


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


def _answers(
    spread: Spread, parts: Sequence[Sequence[int]], end: float | None
) -> Iterator[WorkerAnswer]:
    """The answers of workers; that of a worker that has gone is left out."""
    futures: list[Any] = []
    try:
        for part in parts:
            futures.append(spread.executor.submit(spread.work, spread.task, part))
    except Exception as error:  # a pool that is broken takes nothing
        logger.warning("the executor takes no trials any more: %s", error)
    try:
        for number, future in enumerate(futures):
            tell("verifying in workers", number, len(futures))
            try:
                yield _result(future, end)
            except Exception as error:
                logger.warning("a worker has not answered: %s: %s", type(error).__name__, error)
    finally:
        for future in futures:
            future.cancel()


def _result(future: Any, end: float | None) -> WorkerAnswer:
    if end is None or not isinstance(future, Future):
        answer: WorkerAnswer = future.result()
        return answer
    timed: WorkerAnswer = future.result(timeout=max(0.0, end - time.monotonic()))
    return timed
