"""A recorded call, run once more in private, and what differs."""

from __future__ import annotations

import contextlib
import logging
from contextlib import AbstractContextManager
from typing import Any

import torch

from ..core.call import Arguments
from ..core.structure import Result
from ..observing.bind import as_args_kwargs
from ..observing.effects import Effect, HeldTree
from ..observing.store import Sample
from ..pytrees.comparisons.agree import agreement_of_trees
from ..pytrees.open import open_tree
from .lab import Lab
from .runner import opened

__all__ = ["difference", "is_as_seen", "rerun"]

logger = logging.getLogger(__name__)


def rerun(
    sample: Sample,
    lab: Lab,
    *,
    eval_mode: bool = False,
    with_hooks: bool = False,
    context: AbstractContextManager[Any] | None = None,
) -> Result | Exception:
    """The result of the call, or what it raises. The run is necessary: no budget forbids it.

    ``eval_mode`` puts every module into evaluation mode, ``with_hooks`` calls the model itself
    instead of its method, ``context`` is entered around the call.
    """
    result = _rerun(sample, lab, eval_mode, with_hooks, context)
    written = lab.subject.keeper.by_data
    if written and isinstance(lab.model, torch.nn.Module):
        for path, tensor in (*lab.model.named_parameters(), *lab.model.named_buffers()):
            if id(tensor) in written:  # a graph has what stood there before the call
                lab.kept.renewed[path] = Effect(path, tensor, tensor)
    return result


def _rerun(
    sample: Sample,
    lab: Lab,
    eval_mode: bool,
    with_hooks: bool,
    context: AbstractContextManager[Any] | None,
) -> Result | Exception:
    around = context or contextlib.nullcontext()
    try:
        with lab.private_run(why=f"call {sample.call.index} again"), around:
            if eval_mode:
                for module in lab.model.modules():
                    vars(module)["training"] = False
            if not with_hooks:
                arguments = sample.arguments()
                held = {name: HeldTree(open_tree(value)) for name, value in _tensors(arguments)}
                begun = lab.subject.keeper.begun.again()
                result = opened(lab(arguments))
                for name, value in _tensors(arguments):
                    if any(effect.is_write for effect in held[name].effects(open_tree(value))):
                        lab.written.add(name)
                if not eval_mode and context is None:
                    lab.kept.look_at(lab.model, begun, lambda: lab(sample.arguments()))
                return result
            args, kwargs = as_args_kwargs(lab.signature, sample.arguments())
            return opened(lab.subject.within(lab.model, args, kwargs))
    except Exception as error:
        logger.debug(
            "call %d cannot be run again: %s: %s", sample.call.index, type(error).__name__, error
        )
        return error


def _tensors(arguments: Arguments) -> list[tuple[str, Any]]:
    """The arguments that are tensors or tuples: nothing of one that is opened by its class alone."""
    return [one for one in arguments.items() if isinstance(one[1], (torch.Tensor, tuple))]


def difference(left: Result, right: Result) -> str:
    """The first leaf that differs, in words; nothing where all agree."""
    return agreement_of_trees(left, right).note


def is_as_seen(sample: Sample, again: Result | Exception) -> bool:
    """True for the result that was seen while the model was watched; False for another one, and for an error."""
    return not isinstance(again, Exception) and not difference(sample.outputs, again)
