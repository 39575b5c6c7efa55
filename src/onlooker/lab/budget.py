"""How often the model may be run for experiments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..core.errors import UsageError

__all__ = ["BUDGET", "Budget", "BudgetOption", "budget_of"]

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
        1 <= len(parts) <= 2 and _is_count(parts[0]) and (len(parts) == 1 or _is_limit(parts[1]))
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


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_limit(value: Any) -> bool:
    if value is None:
        return True
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0
