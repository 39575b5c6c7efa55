"""A recorded call, run once more in private, and what differs."""

from __future__ import annotations

import contextlib
import logging
from contextlib import AbstractContextManager
from typing import Any

import torch

from ..core.structure import Tree
from ..observing.bind import as_args_kwargs
from ..observing.store import Sample
from ..pytrees.agree import agreement_of_trees
from ..pytrees.open import open_tree
from .lab import Lab
from .runner import opened

__all__ = ["difference", "rerun"]

logger = logging.getLogger(__name__)


def rerun(
    sample: Sample,
    lab: Lab,
    *,
    eval_mode: bool = False,
    with_hooks: bool = False,
    context: AbstractContextManager[Any] | None = None,
) -> Tree[Any] | Exception:
    """The result of the call, or what it raises. The run is necessary: no budget forbids it.

    ``eval_mode`` puts every module into evaluation mode, ``with_hooks`` calls the model itself
    instead of its method, ``context`` is entered around the call.
    """
    around = context or contextlib.nullcontext()
    try:
        with lab.private_run(why=f"call {sample.call.index} again"), around:
            if eval_mode:
                for module in lab.model.modules():
                    vars(module)["training"] = False
            if not with_hooks:
                arguments = sample.arguments()
                before, begun = _writes(arguments), lab.subject.keeper.begun.again()
                result = opened(lab(arguments))
                after = _writes(arguments)
                lab.written.update(name for name in before if before[name] != after[name])
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


def _writes(arguments: dict[str, Any]) -> dict[str, list[int]]:
    """How often the tensors of each argument were written to, an inference tensor, for which torch
    counts no writes, left out; nothing of an argument that is opened by its class alone.
    """
    found = {}
    for name, value in arguments.items():
        if isinstance(value, (torch.Tensor, tuple)):
            leaves = open_tree(value).leaves
            tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
            found[name] = [tensor._version for tensor in tensors if not tensor.is_inference()]
    return found


def difference(left: Tree[Any], right: Tree[Any]) -> str:
    """The first leaf that differs, in words; nothing where all agree."""
    return agreement_of_trees(left, right).note
