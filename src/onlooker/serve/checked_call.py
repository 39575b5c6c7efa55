"""A recorded call, of which the specs are known, against the graphs of a program."""

from __future__ import annotations

from typing import Any

import torch

from ..core.call import Call
from ..core.spec import ConstantSpec, Spec, TensorSpec
from ..core.structure import Tree
from ..core.surroundings import Gradients
from ..core.traffic import CheckedCall, Violation, ViolationKind
from ..pytrees.open import dtype_of
from .dispatch import Dispatcher

__all__ = ["checked_call", "records_gradients"]


def checked_call(
    dispatcher: Dispatcher, inputs: Tree[Spec], index: int, count: int = 1, *, records: bool
) -> CheckedCall:
    """The first graph that takes a call with these inputs, else the violations of the nearest one;
    ``records`` says whether gradients are recorded around the call.
    """
    tree = inputs.each(_without_values)
    nearest: CheckedCall | None = None
    with torch.set_grad_enabled(records):
        for graph in dispatcher.graphs:
            found = dispatcher.violations(graph, tree)
            if not found:
                return CheckedCall(index, graph.name, (), count)
            if nearest is None or len(found) < len(nearest.violations):
                nearest = CheckedCall(index, graph.name, found, count)
    return nearest or CheckedCall(
        index, "", (Violation(ViolationKind.SIGNATURE, "the program", "a graph", "none"),), count
    )


def _without_values(spec: Spec) -> Any:
    """A leaf as dispatch sees it: a tensor has its shape and dtype only."""
    if isinstance(spec, TensorSpec):
        return torch.empty(spec.shape, dtype=dtype_of(spec.dtype), device="meta")
    return spec.value if isinstance(spec, ConstantSpec) else spec


def records_gradients(call: Call) -> bool:
    """True for a call around which gradients were recorded; unknown is as in a served program."""
    around = call.surroundings
    return around is not None and around.gradients is Gradients.RECORDED
