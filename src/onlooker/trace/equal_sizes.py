"""Sizes that are equal by the plan are one symbol of torch from the start of a trace.

torch gives every axis of every input a symbol of its own and learns with the operators which of
them are equal. A cache of many layers has as many symbols for one length, and the layers look
different until their tensors meet. The plan, which every call of the program is checked against,
says beforehand which axes are equal.
"""

from __future__ import annotations

from typing import Any

import torch

from ..core.call import Values
from ..core.plan import Plan

__all__ = ["unify_sizes"]


def unify_sizes(plan: Plan, values: Values) -> None:
    """Tells torch which symbolic sizes of ``values`` are equal by the plan."""
    first: dict[str, Any] = {}
    for leaf in plan.inputs:
        value = values[leaf.path]
        for axis, expression in leaf.axes:
            size = value if axis.dim is None else value.shape[axis.dim]
            if expression.symbols and isinstance(size, torch.SymInt):
                same = size == first.setdefault(str(expression), size)
                torch._check(same)  # type: ignore[no-untyped-call]  # torch has no types here
