"""What stood around a call while it was watched, and made it what it was: autocast, gradients,
hooks of the model.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch

from ..core.structure import Tree
from ..lab.lab import Lab
from ..lab.rerun import difference, rerun
from ..observing.store import Sample

__all__ = ["autocast_of_export", "beside_fast_path", "surroundings_of"]

_HOOKS = ("_forward_pre_hooks", "_forward_hooks")


def surroundings_of(sample: Sample, lab: Lab) -> str:
    """Where the call gives again what was seen, ``inside torch.autocast(...)``; nothing where no
    place is found.
    """
    if lab.method == "forward" and any(getattr(lab.model, name, None) for name in _HOOKS):
        again = rerun(sample, lab, with_hooks=True)
        if _is_as_seen(sample, again):
            return "with the hooks of the model itself"
    for words, context in _contexts(sample):
        if _is_as_seen(sample, rerun(sample, lab, context=context())):
            return words
    return ""


def autocast_of_export(sample: Sample, again: Tree[Any], lab: Lab) -> tuple[str, str] | None:
    """The autocast block that the caller stands in, and what differs outside; None where nothing
    does.

    ``again`` is the result of the call inside.
    """
    for kind in _kinds(sample):
        if torch.is_autocast_enabled(kind):
            block = f"torch.autocast({kind!r}, dtype={torch.get_autocast_dtype(kind)})"
            outside = rerun(sample, lab, context=torch.autocast(kind, enabled=False))
            if isinstance(outside, Exception):
                return block, f"the model raises {type(outside).__name__}"
            if other := difference(again, outside):
                return block, other
    return None


def beside_fast_path(sample: Sample, again: Tree[Any], lab: Lab) -> str:
    """What differs where the fast path of attention is off; nothing where it is, or is not taken.

    ``again`` is the result of the call as the settings are. Modules of torch take that path in
    eager mode only: with a mask of padding they leave out what is padded, and fill it with zeros.
    """
    if not torch.backends.mha.get_fastpath_enabled() or not _has_attention_of_torch(lab.model):
        return ""
    beside = rerun(sample, lab, context=_without_fast_path())
    return "" if isinstance(beside, Exception) else difference(again, beside)


def _has_attention_of_torch(model: Any) -> bool:
    modules = model.modules() if isinstance(model, torch.nn.Module) else ()
    return any(isinstance(module, torch.nn.MultiheadAttention) for module in modules)


@contextlib.contextmanager
def _without_fast_path() -> Iterator[None]:
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _is_as_seen(sample: Sample, again: Tree[Any] | Exception) -> bool:
    return not isinstance(again, Exception) and not difference(sample.outputs, again)


def _contexts(sample: Sample) -> Iterator[tuple[str, Callable[[], AbstractContextManager[Any]]]]:
    for kind in _kinds(sample):
        for dtype in (torch.bfloat16, torch.float16):
            words = f"inside torch.autocast({kind!r}, dtype={dtype})"
            yield words, lambda kind=kind, dtype=dtype: torch.autocast(kind, dtype=dtype)  # type: ignore[misc]
    yield "where gradients are recorded", torch.enable_grad


def _kinds(sample: Sample) -> list[str]:
    """The kinds of devices of the call that have autocast."""
    leaves = (*sample.inputs.leaves, *sample.outputs.leaves)
    kinds = dict.fromkeys(leaf.device.type for leaf in leaves if isinstance(leaf, torch.Tensor))
    return [kind for kind in kinds if torch.amp.is_autocast_available(kind)]
