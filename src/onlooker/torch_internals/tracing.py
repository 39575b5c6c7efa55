"""Names of torch that stand in a trace: proxies, decompositions, loops, and the settings of the
compiler.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator
from typing import Any

import torch

from .needed import needed
from .sizes import FloatTrueDiv, IntTrueDiv, ToFloat

with needed("traces"):
    from torch import _decomp as decomp
    from torch import _refs as refs
    from torch._decomp import decompositions
    from torch._dispatch.python import enable_python_dispatcher
    from torch._dynamo import config as dynamo_config
    from torch._dynamo.exc import UserError
    from torch._functorch import config as functorch_config
    from torch._guards import CompileContext, TracingContext
    from torch._higher_order_ops.scan import scan_op
    from torch.export import _trace as export_trace
    from torch.fx import _lazy_graph_module as lazy_graph_module
    from torch.fx.experimental import proxy_tensor
    from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing, get_proxy_mode
    from torch.utils._python_dispatch import _get_current_dispatch_mode as get_current_dispatch_mode

__all__ = [
    "UserError",
    "decomp",
    "decompositions",
    "disable_proxy_modes_tracing",
    "dynamo_config",
    "enable_python_dispatcher",
    "export_trace",
    "functorch_config",
    "get_current_dispatch_mode",
    "get_proxy_mode",
    "inner_environment",
    "lazy_graph_module",
    "proxy_tensor",
    "quotients_recorded",
    "refs",
    "scan_op",
    "trace_environment",
]


@contextlib.contextmanager
def quotients_recorded() -> Iterator[None]:
    """Inside the block a trace records quotients of sizes that were computed where it records nothing, as ``1 - 1 / n``
    in a step of a loop: torch does so for sums and products alone.
    """
    known: dict[Any, Any] = getattr(proxy_tensor, "_sympy_handlers", dict)()  # not in torch 2.10
    made = {IntTrueDiv: operator.truediv, FloatTrueDiv: operator.truediv, ToFloat: torch.sym_float}
    new = {kind: function for kind, function in made.items() if kind not in known}
    known.update(new)
    try:
        yield
    finally:
        for kind in new:
            del known[kind]


def trace_environment() -> Any:
    """The symbols of the trace that runs; None outside of one."""
    return getattr(getattr(TracingContext.try_get(), "fake_mode", None), "shape_env", None)


def inner_environment() -> Any:
    """The symbols of the inner graph that torch traces now, as a branch of ``cond``; None outside of
    one.
    """
    compiled = CompileContext.try_get()
    if compiled is None or compiled.compile_id is None:
        return None
    mode = getattr(TracingContext.try_get(), "fake_mode", None)
    return getattr(mode, "shape_env", None)
