"""The watched calls one after the other, on program and model, each of which keeps its own state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from ..core.call import STATE
from ..core.errors import RejectedCallError
from ..core.structure import Tree
from ..core.verdict import Check, Focus, Outcome
from ..lab.runner import ModelRunner
from ..observing.module_state import copied_values
from ..observing.samples import Sample
from ..pytrees.agree import agreement_of_trees
from ..pytrees.open import close_tree, open_tree

__all__ = ["sequence_checks"]


def sequence_checks(
    serve: Callable[[dict[str, Any]], Any],
    subject: ModelRunner,
    samples: Sequence[Sample],
    name: str,
    initial: Mapping[str, Any],
    *,
    atol: float = 1e-5,
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
    serve: Callable[[dict[str, Any]], Any],
    subject: ModelRunner,
    first: Sequence[Sample],
    name: str,
    initial: dict[str, Any],
    atol: float,
) -> Iterator[Check]:
    expected_state, state = initial, initial
    for number, sample in enumerate((*first, *first)):
        is_watched = number < len(first)
        kind = "observed" if is_watched else "unseen"
        label = f"call {sample.call.index} in sequence{'' if is_watched else ', again'}"
        arguments = {**sample.arguments(), name: copied_values(expected_state)}
        try:
            expected = subject.try_out(arguments)
        except Exception as error:
            if is_watched:
                yield _failed(kind, label, f"the model refuses it: {error}")
            return
        try:
            with torch.no_grad():
                got = open_tree(serve({**sample.arguments(), name: copied_values(state)}))
        except RejectedCallError as error:
            if is_watched:
                yield Check(
                    kind, label, Outcome.REJECTED, (), float("inf"), error.message, Focus.SEQUENCE
                )
            return
        except Exception as error:
            yield _failed(kind, label, f"{type(error).__name__}: {error}")
            return
        check = _compared(kind, label, expected, got, atol)
        yield check
        if not check.passed:
            return
        expected_state, state = _state_of(expected), _state_of(got)


def _compared(kind: str, label: str, expected: Tree[Any], got: Tree[Any], atol: float) -> Check:
    found = agreement_of_trees(expected, got, atol=atol)
    outcome = Outcome.EXACT if found.holds else Outcome.DIFFERENT
    return Check(kind, label, outcome, (), found.difference, found.note, Focus.SEQUENCE)


def _failed(kind: str, label: str, note: str) -> Check:
    return Check(kind, label, Outcome.FAILED, (), float("inf"), note, Focus.SEQUENCE)


def _state_of(result: Tree[Any]) -> dict[str, Any]:
    state: dict[str, Any] = close_tree(result.structure, result.leaves)[STATE]
    return state
