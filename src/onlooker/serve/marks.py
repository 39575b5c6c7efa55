"""Whether a call has the marks that a graph's model reads: gradients, memory, one argument twice; and
whether the tensors that the graph writes can be written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.export.graph_signature import InputKind

from ..core.call import ARGUMENTS, Signature
from ..core.marks import (
    FINITE,
    GRADIENTS,
    IDENTITY,
    MEMORY,
    NUMBERS,
    ORDER,
    PARAMETERS,
    UNRECORDED,
    WRITES,
    said_of,
)
from ..core.path import Key
from ..core.plan import Plan
from ..core.structure import Structure
from ..core.traffic import Breach, BreachKind
from ..pytrees.numbers import as_numbers
from ..torch_internals.tensor_marks import base_of_tensor, is_view, version_of_tensor
from ..trace.graph import Graph
from ..trace.graph_effects import written_placeholders
from ..trace.order_reads import of_var_keyword, orders_differ

__all__ = ["MarksOfCalls", "order_breach"]


class MarksOfCalls:
    """Checks the inputs of one graph; of most graphs nothing is read."""

    def __init__(self, graph: Graph) -> None:
        self._marks: Mapping[str, str] = graph.marks
        self._paths = [leaf.path for leaf in graph.plan.inputs]
        self._written = _written_inputs(graph)
        #: a cache that comes back is not looked through at each call
        self._returned = set(graph.outputs.structure.paths()).intersection(self._paths)

    def __bool__(self) -> bool:
        """False where any tensors do."""
        return bool(self._marks or self._written)

    def breaches(self, inputs: Sequence[Any]) -> Iterator[Breach]:
        """Each input with a mark that the graph was not traced with, or that cannot be written."""
        for position in self._written:
            value = inputs[position]
            reason = _why_unwritable(value) if isinstance(value, torch.Tensor) else ""
            if reason:
                expected = f"a tensor that can be written: the call changes {self._paths[position]}"
                yield Breach(BreachKind.CONDITION, "this graph", expected, reason)
        if not self._marks:
            return
        if UNRECORDED in self._marks and torch.is_grad_enabled():
            yield self._breach(UNRECORDED, "the call", "which is not")
        seen: dict[int, int] = {}
        for position, value in enumerate(inputs):
            if not isinstance(value, torch.Tensor):
                continue
            where = str(self._paths[position])
            if GRADIENTS in self._marks and value.requires_grad:
                yield self._breach(GRADIENTS, where, "which does")
            if MEMORY in self._marks and not _is_plain(value):
                yield self._breach(MEMORY, where, "which is not")
            if PARAMETERS in self._marks and isinstance(value, torch.nn.Parameter):
                yield self._breach(PARAMETERS, where, "which is one")
            if WRITES in self._marks and (value.is_inference() or version_of_tensor(value)):
                yield self._breach(WRITES, where, "which was")
            if NUMBERS in self._marks and self._has_nan(position, value):
                yield self._breach(NUMBERS, where, "which has NaN")
            if FINITE in self._marks and self._has_infinite(position, value):
                yield self._breach(FINITE, where, "which has infinite ones")
            first = seen.setdefault(id(value), position)
            if IDENTITY in self._marks and first != position:
                yield self._breach(IDENTITY, where, f"which is {self._paths[first]}")

    def _has_infinite(self, position: int, value: torch.Tensor) -> bool:
        if not self._has_floats(position, value):
            return False
        value = as_numbers(value)
        total = value.sum()  # is not finite where a number is infinite, or many are large
        return not bool(total.isfinite()) and bool(value.isinf().any())

    def _has_floats(self, position: int, value: torch.Tensor) -> bool:
        """True for a tensor of floats that is looked through; a recorded call has shapes alone."""
        is_float = value.is_floating_point() and not value.is_meta
        return is_float and self._paths[position] not in self._returned

    def _has_nan(self, position: int, value: torch.Tensor) -> bool:
        if not self._has_floats(position, value):
            return False
        value = as_numbers(value)
        total = value.sum()  # is NaN where a number is, and where infinite ones meet
        return bool(total.isnan()) and bool(value.isnan().any())

    def _breach(self, mark: str, where: str, got: str) -> Breach:
        expected = f"{said_of(mark)}, because of {self._marks[mark]}"
        return Breach(BreachKind.CONDITION, "this graph", expected, f"{where}, {got}")


def _written_inputs(graph: Graph) -> tuple[int, ...]:
    """The positions of the tensors among the inputs that a call changes in place."""
    paths = {leaf.path: number for number, leaf in enumerate(graph.plan.inputs) if leaf.is_tensor}
    given = {
        path.entries[1]
        for path in graph.outputs.structure.paths()
        if len(path.entries) == 2 and path.entries[0] == Key(ARGUMENTS)
    }
    found = {
        number
        for path, number in paths.items()
        if len(path.entries) == 1 and Key(path.root) in given
    }
    if isinstance(graph.artifact, torch.export.ExportedProgram):
        names = written_placeholders(graph.artifact)
        specs = graph.artifact.graph_signature.input_specs
        inputs = [spec.arg for spec in specs if spec.kind is InputKind.USER_INPUT]
        found |= {n for n, one in enumerate(inputs) if getattr(one, "name", "") in names}
    return tuple(sorted(found))


def _why_unwritable(value: torch.Tensor) -> str:
    """Why torch refuses an operator of the model that writes to this tensor; empty where it does not."""
    base = base_of_tensor(value)
    owner = value if base is None else base
    if torch.is_grad_enabled() and owner.requires_grad and owner.is_leaf:
        return "a leaf that records gradients"
    if value.is_inference() and not torch.is_inference_mode_enabled():
        return "a tensor of inference mode"
    if value.layout == torch.strided and any(
        size > 1 and stride == 0 for size, stride in zip(value.shape, value.stride(), strict=True)
    ):
        return "a tensor that is expanded, of which many elements are one"
    return ""


def _is_plain(value: torch.Tensor) -> bool:
    is_strided = value.layout == torch.strided
    if not is_strided or not value.is_contiguous():
        return False
    return value.storage_offset() == 0 and not is_view(value)


def order_breach(
    marks: Mapping[str, str], plan: Plan, given: Structure, signature: Signature
) -> Breach | None:
    """Why a call with other orders of its dicts is not taken; None where the orders are those of the
    plan, or are not read.
    """
    if ORDER not in marks:
        return None
    planned = of_var_keyword(plan.structure, signature)
    came = of_var_keyword(given, signature)
    shared = [
        [name for name in names if name in others]
        for names, others in ((planned, came), (came, planned))
    ]
    found = next(iter(orders_differ(plan.structure, given)), None)
    if found is None and shared[0] == shared[1]:
        return None
    got = ", ".join(entry.code() for entry in found) if found is not None else ", ".join(shared[1])
    expected = f"{said_of(ORDER)}, because of {marks[ORDER]}"
    return Breach(BreachKind.CONDITION, "this graph", expected, got)
