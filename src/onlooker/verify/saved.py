"""Kept calls against the results that were observed: what can be tried where the model is not at
hand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..core.verdict import Tally
from ..observing.samples import Sample
from .trials import observed_trials
from .verify import check_trial

__all__ = ["saved_trials"]


def saved_trials(
    serve: Callable[[dict[str, Any]], Any], samples: Sequence[Sample], *, atol: float = 1e-5
) -> Tally:
    """One check per kept call; the expected result is the one that was observed."""
    trials = zip(observed_trials(samples), samples, strict=True)
    return Tally(tuple(check_trial(serve, trial, sample.outputs, atol) for trial, sample in trials))
