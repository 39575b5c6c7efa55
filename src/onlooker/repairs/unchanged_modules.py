"""Modules that a forward converts to the dtype or device that they have already.

Why: ``self.router.to(x.dtype)`` in a forward puts each weight anew into its module, also where
nothing changes. In a trace weights are tensors without values, which a module does not take there,
and the export ends with "Couldn't swap Linear.weight". A conversion that changes nothing gives the
module as it is; any other one is torch's own.

Upstream: https://github.com/pytorch/pytorch/blob/v2.13.0/torch/nn/modules/module.py, ``_apply``. It
may go when that takes fake tensors; ``test_a_conversion_that_changes_nothing_is_refused_by_torch``
of ``tests/repairs/test_unchanged_modules.py`` fails then.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import chain
from typing import Any

import torch

from ..patches.swap import swapped
from ..torch_internals.operators import parse_to
from .repair import Repair

__all__ = ["UNCHANGED_MODULES", "unchanged_modules_stay"]


@contextlib.contextmanager
def unchanged_modules_stay() -> Iterator[None]:
    """Inside the block ``Module.to`` gives the module itself where it would change no weight."""
    to = torch.nn.Module.to

    def converted(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        return self if _changes_nothing(self, args, kwargs) else to(self, *args, **kwargs)

    with swapped(torch.nn.Module, "to", converted):
        yield


def _changes_nothing(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bool:
    try:
        device, dtype, _, form = parse_to(*args, **kwargs)
    except (TypeError, RuntimeError):
        return False  # torch has an error for it
    if form is not None:
        return False
    return all(
        (device is None or tensor.device == device)
        and (dtype is None or not tensor.is_floating_point() or tensor.dtype == dtype)
        for tensor in chain(module.parameters(), module.buffers())
    )


UNCHANGED_MODULES = Repair(
    "unchanged modules",
    "``self.router.to(x.dtype)`` in a forward puts each weight anew into its module, also"
    " where nothing changes. A module takes no weight without values, so the trace ends.",
    until="upstream/torch_module_to_in_forward.py",
    versions="2.13, 2.15",
    link="https://github.com/pytorch/pytorch/blob/v2.13.0/torch/nn/modules/module.py",
    refusal="Couldn't swap",
    block=lambda _: unchanged_modules_stay(),
)
