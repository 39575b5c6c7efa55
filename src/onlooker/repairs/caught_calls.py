"""Calls of modules that raise, in a ``try`` block of the model.

``try: x = layer(x, lengths=lengths)`` and ``except TypeError: x = layer(x)`` call a layer with what it may
not take. A trace notes which modules it is in, and the note of a call that raised stays, so that the module
around it ends with "Unexpected key". Here what was noted before the call is put back.

Upstream: https://github.com/pytorch/pytorch/blob/v2.13.0/torch/fx/_symbolic_trace.py, ``Tracer.call_module``.
It may go when that takes its note back in a ``finally``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch.fx

from ..patches.swap import swapped
from .repair import Repair

__all__ = ["CAUGHT_CALLS", "raised_calls_are_forgotten"]


@contextlib.contextmanager
def raised_calls_are_forgotten() -> Iterator[None]:
    """Inside the block a call of a module that raises leaves no note of the module in a trace."""
    call = torch.fx.Tracer.call_module

    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = list(self.module_stack.items())
        try:
            return call(self, *args, **kwargs)
        except BaseException:
            self.module_stack.clear()
            self.module_stack.update(before)
            raise

    with swapped(torch.fx.Tracer, "call_module", noted):
        yield


CAUGHT_CALLS = Repair(
    "caught calls",
    "``try: layer(x, lengths=lengths)`` and ``except TypeError: layer(x)`` end the trace: it notes which"
    " modules it is in, and the note of a call that raised stays.",
    until="upstream/torch_caught_call_of_a_module.py",
    versions="2.13",
    link="https://github.com/pytorch/pytorch/blob/v2.13.0/torch/fx/_symbolic_trace.py",
    always=True,
    block=lambda _: raised_calls_are_forgotten(),
)
