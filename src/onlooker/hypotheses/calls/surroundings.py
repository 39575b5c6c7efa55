"""What stood around a call while it was watched, and made it what it was: gradients, hooks of the
model. Autocast is noted with each call, and every run is made inside it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from ...core.structure import Result
from ...lab.lab import Lab
from ...lab.rerun import difference, is_as_seen, rerun
from ...observing.store import Sample
from ...repairs.encoder_padding import padding_is_zero

__all__ = ["beside_fast_path", "surroundings_of"]

_HOOKS = ("_forward_pre_hooks", "_forward_hooks")


def surroundings_of(sample: Sample, lab: Lab) -> str:
    """Returns the surroundings in which the call gives again what was seen, ``where gradients are
    recorded``; nothing where none are found.
    """
    if lab.method == "forward" and any(getattr(lab.model, name, None) for name in _HOOKS):
        again = rerun(sample, lab, with_hooks=True)
        if is_as_seen(sample, again):
            return "with the hooks of the model itself"
    if is_as_seen(sample, rerun(sample, lab, context=torch.enable_grad())):
        return "where gradients are recorded"
    return ""


def beside_fast_path(sample: Sample, again: Result, lab: Lab) -> str:
    """Returns the difference that the fast path of attention makes; nothing where there is none, or
    where it is not taken.

    ``again`` is the result of the call as the settings are. Modules of torch take that path in
    eager mode only. The zeros that encoders give at padded positions there are in a trace, too
    (:mod:`onlooker.repairs.encoder_padding`).
    """
    if not torch.backends.mha.get_fastpath_enabled() or not _has_attention_of_torch(lab.model):
        return ""
    beside = rerun(sample, lab, context=_without_fast_path(lab.model))
    return "" if isinstance(beside, Exception) else difference(again, beside)


def _has_attention_of_torch(model: Any) -> bool:
    modules = model.modules() if isinstance(model, torch.nn.Module) else ()
    return any(isinstance(module, torch.nn.MultiheadAttention) for module in modules)


@contextlib.contextmanager
def _without_fast_path(model: Any) -> Iterator[None]:
    before = torch.backends.mha.get_fastpath_enabled()
    try:
        with padding_is_zero(model):
            torch.backends.mha.set_fastpath_enabled(False)
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
