"""The watched calls one after the other, on program and model, each of which keeps its own state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from ..core.call import STATE, Serve
from ..core.errors import RejectedCallError
from ..core.structure import Result
from ..core.verdict import Check, Focus, Outcome
from ..lab.runner import ModelRunner
from ..observing.module_state import copied_values
from ..observing.samples import Sample
from ..pytrees.comparisons.agree import agreement_of_trees
from ..pytrees.open import close_tree, open_tree
from .trials import Trial

__all__ = ["sequence_checks"]


def sequence_checks(
    serve: Serve,
    subject: ModelRunner,
    samples: Sequence[Sample],
    name: str,
    initial: Mapping[str, Any],
    *,
    atol: float,
) -> tuple[Check, ...]:
    """One check per call of a sequence that begins with the ``initial`` state.

    The sequence has the first kept calls, as far as they follow each other, and then the same calls
    again, which go on from a state that no watched call may have had. It ends where the model or
    the program refuses such a further call, and at the first call that differs. The argument
    ``name`` has the state.
    """
    first = [sample for position, sample in enumerate(samples) if sample.call.index == position]
    return tuple(_checked(serve, subject, first, name, dict(initial), atol))


def _checked(
    serve: Serve,
    subject: ModelRunner,
    first: Sequence[Sample],
    name: str,
    initial: dict[str, Any],
    atol: float,
) -> Iterator[Check]:
    expected_state, state = initial, initial
    for number, sample in enumerate((*first, *first)):
        is_watched = number < len(first)
        trial = Trial(
            "observed" if is_watched else "unseen",
            f"call {sample.call.index} in sequence{'' if is_watched else ', again'}",
            {**sample.arguments(), name: copied_values(expected_state)},
            focus=Focus.SEQUENCE,
        )
        try:
            expected = subject.try_out(trial.arguments)
        except Exception as error:
            if is_watched:
                yield trial.failed(f"the model refuses it: {error}")
            return
        try:
            with torch.no_grad():
                got = open_tree(serve({**sample.arguments(), name: copied_values(state)}))
        except RejectedCallError as error:
            if is_watched:
                yield trial.failed(error.message, Outcome.REJECTED)
            return
        except Exception as error:
            yield trial.failed(f"{type(error).__name__}: {error}")
            return
        check = trial.compared(agreement_of_trees(expected, got, atol=atol))
        yield check
        if not check.passed:
            return
        expected_state, state = _state_of(expected), _state_of(got)


def _state_of(result: Result) -> dict[str, Any]:
    state: dict[str, Any] = close_tree(result.structure, result.leaves)[STATE]
    return state
