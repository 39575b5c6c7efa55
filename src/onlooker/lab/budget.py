"""The number of runs that experiments with a model may take, and the runs that were made."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..core.errors import UsageError
from ..core.support.kinds import is_count, is_number
from ..core.support.progress import Step, tell_step

__all__ = ["BUDGET", "Budget", "BudgetOption", "CountedRuns", "SpentError", "budget_of"]

logger = logging.getLogger(__name__)

#: what a caller may give: the most runs, or the most runs and the seconds after which no experiment
#: is begun
BudgetOption = int | tuple[int] | tuple[int, float | None]

#: the default: so many runs between the recording and the program, and no limit of time
BUDGET: tuple[int, float | None] = (512, None)


@dataclass(frozen=True, slots=True)
class Budget:
    """The most runs for experiments, and the seconds after which no experiment is begun (None for
    no limit).

    Only a caller who gives seconds gets a search that depends on the speed of the machine.
    """

    runs: int = BUDGET[0]
    seconds: float | None = BUDGET[1]


def budget_of(given: Any) -> Budget:
    """The budget that a caller gave, as a number of runs or as ``(runs, seconds)``.

    :raises UsageError: ``bad-pin``
    """
    parts = given if isinstance(given, tuple) else (given,)
    is_right = (
        1 <= len(parts) <= 2 and is_count(parts[0]) and (len(parts) == 1 or _is_limit(parts[1]))
    )
    if not is_right:
        raise UsageError(
            f"budget={given!r} cannot be obeyed.",
            slug="bad-pin",
            hint=(
                "Give the most runs of the model, 256, or the most runs and the most seconds, (256,"
                " 60.0)."
            ),
        )
    return Budget(*parts)


def _is_limit(value: Any) -> bool:
    if value is None:
        return True
    return is_number(value) and value >= 0


class SpentError(Exception):
    """The budget, or the memory, ended before an experiment; a user never sees it. ``limit`` says
    which end was reached.
    """

    def __init__(self, limit: str) -> None:
        super().__init__(f"the budget of {limit} has ended")
        self.limit = limit


class CountedRuns:
    """Counts the runs of a model, and ends them with the budget.

    ``runs`` are all of them, ``necessary`` those which no budget forbids: recorded calls that are run
    again, the first try to serve several kinds of calls with one graph, the example of each trace.
    """

    def __init__(self, budget: Budget) -> None:
        self.budget: Budget = budget
        self.runs: int = 0
        self.necessary: int = 0
        self._shares: list[tuple[int, str]] = []
        self._began = time.monotonic()

    @contextlib.contextmanager
    def share(self, most: int) -> Iterator[None]:
        """Inside the block at most so many runs are made: no family of hypotheses takes the whole
        budget.

        The number is that of the default budget; with a larger one it is larger in proportion.
        """
        runs = self.in_proportion(most)
        self._shares.append((self._counted + runs, f"{runs} runs for one kind of question"))
        try:
            yield
        finally:
            self._shares.pop()

    def in_proportion(self, most: int) -> int:
        """The number of runs that is ``most`` under the default budget, or under a smaller one."""
        return most * max(self.budget.runs, BUDGET[0]) // BUDGET[0]

    @property
    def _counted(self) -> int:
        """The runs that count against the budget."""
        return self.runs - self.necessary

    def check_budget(self) -> None:
        """Passes when another run is allowed.

        :raises SpentError: when the budget has ended
        """
        seconds = self.budget.seconds
        if seconds is not None and time.monotonic() - self._began >= seconds:
            raise SpentError(f"{seconds:g} seconds")
        if self._counted >= self.budget.runs:
            raise SpentError(f"{self.budget.runs} runs")
        for end, limit in self._shares:
            if self._counted >= end:
                raise SpentError(limit)

    def count(self, why: str, *, necessary: bool) -> None:
        """Counts a run that begins, and says what it is for.

        :raises SpentError: when the budget has ended, for a run that is not necessary
        """
        if necessary:
            self.necessary += 1
        else:
            self.check_budget()
        self.runs += 1
        tell_step(Step("probing", self._counted, self.budget.runs, why, at_most=True))
        if necessary:
            logger.info("run %d: %s", self.runs, why)
        else:
            logger.info(
                "run %d, experiment %d of at most %d: %s",
                self.runs,
                self._counted,
                self.budget.runs,
                why,
            )
