"""Whether a call has the marks that a graph's model reads: gradients, memory, one argument twice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from ..core.call import Signature
from ..core.marks import GRADIENTS, IDENTITY, MEMORY, NUMBERS, ORDER, said_of
from ..core.plan import Plan
from ..core.structure import Structure
from ..core.traffic import Breach, BreachKind
from ..pytrees.numbers import as_numbers
from ..torch_internals.tensor_marks import is_view
from ..trace.graph import Graph
from ..trace.order_reads import of_var_keyword, orders_differ

__all__ = ["MarksOfCalls", "order_breach"]


class MarksOfCalls:
    """Checks the inputs of one graph; of most graphs nothing is read."""

    def __init__(self, graph: Graph) -> None:
        self._marks: Mapping[str, str] = graph.marks
        self._paths = [leaf.path for leaf in graph.plan.inputs]
        #: a cache that comes back is not looked through at each call
        self._returned = set(graph.outputs.structure.paths()).intersection(self._paths)

    def breaches(self, inputs: Sequence[Any]) -> Iterator[Breach]:
        """Each input with a mark that the graph was not traced with."""
        seen: dict[int, int] = {}
        for position, value in enumerate(inputs):
            if not isinstance(value, torch.Tensor):
                continue
            where = str(self._paths[position])
            if GRADIENTS in self._marks and value.requires_grad:
                yield self._breach(GRADIENTS, where, "which does")
            if MEMORY in self._marks and not _is_plain(value):
                yield self._breach(MEMORY, where, "which is not")
            if NUMBERS in self._marks and self._has_nan(position, value):
                yield self._breach(NUMBERS, where, "which has NaN")
            first = seen.setdefault(id(value), position)
            if IDENTITY in self._marks and first != position:
                yield self._breach(IDENTITY, where, f"which is {self._paths[first]}")

    def _has_nan(self, position: int, value: torch.Tensor) -> bool:
        if not value.is_floating_point() or self._paths[position] in self._returned:
            return False
        if value.is_meta:  # a recorded call has shapes alone
            return False
        value = as_numbers(value)
        total = value.sum()  # is NaN where a number is, and where infinite ones meet
        return bool(total.isnan()) and bool(value.isnan().any())

    def _breach(self, mark: str, where: str, got: str) -> Breach:
        expected = f"{said_of(mark)}, because of {self._marks[mark]}"
        return Breach(BreachKind.CONDITION, "this graph", expected, f"{where}, {got}")


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
