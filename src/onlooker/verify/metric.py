"""A metric of the user, of the model and of the program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..core.errors import UsageError
from ..core.support.kinds import is_number
from ..core.verdict import Check, Focus, Outcome
from ..lab.runner import ModelRunner
from ..serve.runnable import RunnableProgram

__all__ = ["metric_checks"]


def metric_checks(
    program: RunnableProgram,
    subject: ModelRunner,
    metric: Callable[[Callable[..., Any]], Any] | None,
    at_least: float | None,
) -> Iterator[Check]:
    """The check of a metric of the user: a number of the program that is ``at_least`` this one, or
    that of the model where none is given. None where no metric is given.

    ``metric`` gets what is called as the model is.

    :raises UsageError: ``bad-metric`` where it does not return a number
    """
    if metric is None:
        return
    with torch.no_grad(), subject.untouched():
        wanted = _measured(metric, getattr(subject.model, subject.method), "the model")
    with torch.set_grad_enabled(subject.gradients):
        got = _measured(metric, lambda *args, **kwargs: program(args, kwargs), "the program")
    least = wanted if at_least is None else float(at_least)
    outcome = Outcome.EXACT if got >= least else Outcome.DIFFERENT
    name = getattr(metric, "__name__", type(metric).__name__)
    note = f"{got:.6g} of the program, {wanted:.6g} of the model; at least {least:.6g} is asked"
    yield Check("observed", f"metric {name}", outcome, (), abs(wanted - got), note, Focus.METRIC)


def _measured(metric: Callable[..., Any], run: Callable[..., Any], what: str) -> float:
    found = metric(run)
    if isinstance(found, torch.Tensor) and found.numel() == 1:
        found = found.item()
    number = float(found) if is_number(found) or hasattr(found, "__float__") else float("nan")
    if number != number:
        raise UsageError(
            f"The metric of {what} is {found!r}.",
            slug="bad-metric",
            hint="Return one number, the higher the better.",
        )
    return number
