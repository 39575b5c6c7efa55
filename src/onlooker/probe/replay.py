"""Replays kept calls: a model whose results depend on more than its arguments gives others, or refuses them.

Such a model counts its calls, fills a table as it goes, draws random numbers, or is in training mode. What is exported
of it is what one call does, so that is said before. Or something stood around the calls, as autocast or a hook, which
does not stand around an experiment, and is in no graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..core.errors import ExportError, OnlookerWarning
from ..observe.inner import advice_on_inner
from ..observe.store import Sample
from .once_more import difference, once_more
from .subject import Subject
from .surroundings import autocast_of_export, surroundings_of

__all__ = ["find_doubt"]

_MOST_REPLAYS = 2


def find_doubt(samples: Sequence[Sample], subject: Subject) -> OnlookerWarning | None:
    """What speaks against taking one call for all: the first and the last kept call are run again, in private.

    :raises ExportError: ``replay-refused`` when the model refuses all that are run again
    """
    training = _is_training(subject.model)
    refused: list[tuple[Sample, Exception]] = []
    ends = _ends(samples)
    for sample in ends:
        again = once_more(sample, subject)
        if isinstance(again, Exception):
            refused.append((sample, again))
            continue
        calm = once_more(sample, subject, calm=True) if training else again
        if not isinstance(calm, Exception) and (other := difference(again, calm)):
            return _in_training(sample, other)
        if other := difference(sample.outputs, again):
            return _depends(sample, f"differs ({other})", surroundings_of(sample, subject))
        if block := autocast_of_export(sample, again, subject):
            return _inside_autocast(*block)
    if refused and len(refused) == len(ends):
        raise _refusal(*refused[0], subject)
    return _depends(refused[0][0], f"is refused ({_first_line(refused[0][1])})") if refused else None


def _ends(samples: Sequence[Sample]) -> list[Sample]:
    whole = [sample for sample in samples if not sample.altered]
    return whole if len(whole) <= _MOST_REPLAYS else [whole[0], whole[-1]]


def _is_training(model: Any) -> bool:
    return isinstance(model, torch.nn.Module) and any(module.training for module in model.modules())


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _refusal(sample: Sample, error: Exception, subject: Subject) -> ExportError:
    found = surroundings_of(sample, subject)
    text = (
        f"The model took call {sample.call.index} while it was watched, and refuses it when it is run again in "
        f"private: {_first_line(error).rstrip('.')}."
    )
    if found:
        hint = f"It takes it {found}. {_MOVE}"
    else:
        inner = advice_on_inner(subject.model)
        hint = inner.strip() or f"It may be a context, a hook or a global setting. {_MOVE}"
    return ExportError(text, slug="replay-refused", hint=hint)


_MOVE = (
    "What stands around a call is in no graph: move it into the method, or watch a module whose forward does both, "
    "the surroundings and the call."
)


def _in_training(sample: Sample, difference: str) -> OnlookerWarning:
    return OnlookerWarning(
        f"The model, or a module of it, is in training mode, and in evaluation mode call {sample.call.index} gives "
        f"another result ({difference}).",
        slug="training-mode",
        hint="Call model.eval() before watching and exporting, unless the behaviour in training shall be exported.",
    )


def _inside_autocast(block: str, difference: str) -> OnlookerWarning:
    return OnlookerWarning(
        f"The export runs inside {block}, which is in no graph: outside, the results are others ({difference}).",
        slug="export-inside-autocast",
        hint="Move the block into the method, or run the program inside such a block only.",
    )


def _depends(sample: Sample, what: str, found: str = "") -> OnlookerWarning:
    said = f" {found[0].upper()}{found[1:]}, it gives what was seen." if found else ""
    return OnlookerWarning(
        f"Outputs depend on earlier calls, or on something else than the arguments: call {sample.call.index}, run "
        f"again from the state that stood before watching, {what}.{said}",
        slug="outputs-depend-on-earlier-calls",
        hint=f"The program is without it. {_MOVE}"
        if found
        else "The program does what such a first call does. Pass the state as an argument, or watch another method.",
    )
