"""Runs trials on a program and on the model, and sums up what agrees."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ..core.errors import RejectedCallError
from ..core.verdict import Check, Outcome, Tally
from ..probe.subject import Subject
from ..pytrees.agree import agreement
from ..pytrees.open import map_tensors, open_tree
from .trials import Trial

__all__ = ["check_trial", "run_trials"]

logger = logging.getLogger(__name__)


def run_trials(
    serve: Callable[[dict[str, Any]], Any], subject: Subject, trials: Iterable[Trial], *, atol: float = 1e-5
) -> tuple[Tally, tuple[str, ...]]:
    """The tally of all trials that are lawful, and the labels of those that the model itself refuses."""
    checks, unlawful = [], []
    for trial in trials:
        try:
            expected = subject.try_out(trial.arguments)
        except Exception as error:
            logger.debug("%s is no lawful call of the model: %s: %s", trial.label, type(error).__name__, error)
            if trial.kind == "observed":
                note = (
                    f"the model itself refuses the observed call when it is replayed: {type(error).__name__}: {error}"
                )
                checks.append(Check(trial.kind, trial.label, Outcome.FAILED, trial.sizes, float("inf"), note))
            else:
                unlawful.append(trial.label)
            continue
        checks.append(check_trial(serve, trial, expected, atol))
    return Tally(tuple(checks)), tuple(unlawful)


def check_trial(serve: Callable[[dict[str, Any]], Any], trial: Trial, expected: Any, atol: float) -> Check:
    """One comparison of a program with the result of the model, opened."""
    arguments = map_tensors(lambda t: t.detach().clone(), trial.arguments)
    try:
        with torch.no_grad():
            got = open_tree(serve(arguments))
    except RejectedCallError as error:
        return Check(trial.kind, trial.label, Outcome.REJECTED, trial.sizes, float("inf"), error.message)
    except Exception as error:
        note = f"{type(error).__name__}: {error}"
        return Check(trial.kind, trial.label, Outcome.FAILED, trial.sizes, float("inf"), note)
    paths = list(expected.structure.paths())
    if paths != list(got.structure.paths()):
        note = "the result has other parts than the model's"
        return Check(trial.kind, trial.label, Outcome.DIFFERENT, trial.sizes, float("inf"), note)
    found = agreement(paths, expected.leaves, got.leaves, atol=atol)
    outcome = Outcome.EXACT if found.holds else Outcome.DIFFERENT
    return Check(trial.kind, trial.label, outcome, trial.sizes, found.difference, found.note)
