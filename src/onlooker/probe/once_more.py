"""A kept call, run once more in private, and what differs."""

from __future__ import annotations

import contextlib
import logging
from contextlib import AbstractContextManager
from typing import Any

import torch

from ..core.structure import Tree
from ..observe.bind import as_args_kwargs
from ..observe.store import Sample
from ..pytrees.agree import agreement
from ..pytrees.open import open_tree
from .subject import Subject

__all__ = ["difference", "once_more"]

logger = logging.getLogger(__name__)


def once_more(
    sample: Sample,
    subject: Subject,
    *,
    calm: bool = False,
    whole: bool = False,
    around: AbstractContextManager[Any] | None = None,
) -> Tree[Any] | Exception:
    """The result of the call, or what it raises.

    In evaluation mode when ``calm``; with the hooks of the model itself when ``whole``; inside ``around``.
    """
    try:
        with torch.no_grad(), subject.untouched(), around or contextlib.nullcontext():
            if calm:
                for module in subject.model.modules():
                    vars(module)["training"] = False
            if not whole:
                return open_tree(subject(sample.arguments()))
            args, kwargs = as_args_kwargs(subject.signature, sample.arguments())
            return open_tree(subject.model(*args, **kwargs))
    except Exception as error:
        logger.debug("call %d cannot be run again: %s: %s", sample.call.index, type(error).__name__, error)
        return error


def difference(left: Tree[Any], right: Tree[Any]) -> str:
    """The first leaf that differs, in words; nothing where all agree."""
    paths = list(left.structure.paths())
    if paths != list(right.structure.paths()):
        return "it has other outputs"
    return agreement(paths, left.leaves, right.leaves).note
