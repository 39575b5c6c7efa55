"""Replays kept calls: a model whose results depend on more than its arguments gives others.

Such a model counts its calls, fills a table as it goes, draws random numbers, or is in training mode. What is exported
of it is what one call does, so that is said before.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch

from ..core.errors import OnlookerWarning
from ..core.structure import Tree
from ..observe.store import Sample
from ..pytrees.agree import agreement
from ..pytrees.open import open_tree
from .subject import Subject

__all__ = ["find_doubt"]

logger = logging.getLogger(__name__)
_MOST_REPLAYS = 2


def find_doubt(samples: Sequence[Sample], subject: Subject) -> OnlookerWarning | None:
    """What speaks against taking one call for all: the first and the last kept call are run again, in private."""
    training = _is_training(subject.model)
    for sample in _ends(samples):
        again = _replayed(sample, subject)
        if again is None:
            continue
        calm = _replayed(sample, subject, calm=True) if training else None
        if calm is not None and (other := _difference(again, calm)):
            return _in_training(sample, other)
        if difference := _difference(sample.outputs, again):
            return _depends(sample, difference)
    return None


def _ends(samples: Sequence[Sample]) -> list[Sample]:
    whole = [sample for sample in samples if not sample.altered]
    return whole if len(whole) <= _MOST_REPLAYS else [whole[0], whole[-1]]


def _is_training(model: Any) -> bool:
    return isinstance(model, torch.nn.Module) and any(module.training for module in model.modules())


def _replayed(sample: Sample, subject: Subject, *, calm: bool = False) -> Tree[Any] | None:
    """The result of the call once more, in evaluation mode when ``calm``; None where it raises."""
    try:
        with torch.no_grad(), subject.untouched():
            if calm:
                for module in subject.model.modules():
                    vars(module)["training"] = False
            return open_tree(subject(sample.arguments()))
    except Exception as error:
        logger.debug("call %d cannot be run again: %s: %s", sample.call.index, type(error).__name__, error)
        return None


def _difference(left: Tree[Any], right: Tree[Any]) -> str:
    """The first leaf that differs, in words; nothing where all agree."""
    paths = list(left.structure.paths())
    if paths != list(right.structure.paths()):
        return "it has other outputs"
    return agreement(paths, left.leaves, right.leaves).note


def _in_training(sample: Sample, difference: str) -> OnlookerWarning:
    return OnlookerWarning(
        f"The model, or a module of it, is in training mode, and in evaluation mode call {sample.call.index} gives "
        f"another result ({difference}).",
        slug="training-mode",
        hint="Call model.eval() before watching and exporting, unless the behaviour in training shall be exported.",
    )


def _depends(sample: Sample, difference: str) -> OnlookerWarning:
    return OnlookerWarning(
        f"Outputs depend on earlier calls, or on something else than the arguments: call {sample.call.index}, run "
        f"again from the state that stood before watching, differs ({difference}).",
        slug="outputs-depend-on-earlier-calls",
        hint="The program does what such a first call does. Pass the state as an argument, or watch another method.",
    )
