"""Whether a call has the marks that a graph's model reads: gradients, memory, one argument twice; and
whether the tensors that the graph writes can be written.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.export.graph_signature import InputKind

from ..core.call import ARGUMENTS, Signature
from ..core.marks import (
    ATTRIBUTES,
    CLASSES,
    FINITE,
    GRADIENTS,
    IDENTITY,
    INFERENCE,
    MEMORY,
    NUMBERS,
    ORDER,
    RECORDED,
    SINGLE,
    UNRECORDED,
    WRITES,
    asked_in,
    asked_mark,
    autocast_mark,
    autocasts_in,
    contiguous_in,
    contiguous_mark,
    ids_in,
    ids_mark,
    ints_in,
    ints_mark,
    said_of,
    setting_mark,
    settings_in,
)
from ..core.path import Key
from ..core.plan import Plan
from ..core.structure import Structure
from ..core.traffic import Violation, ViolationKind
from ..observing.surroundings import autocast_state
from ..proofs.operators import written_placeholders
from ..pytrees.numbers import as_numbers, large_int, other_int
from ..torch_internals.tensor_marks import base_of_tensor, is_view, version_of_tensor
from ..trace.graph import Graph
from ..trace.order_reads import of_var_keyword, orders_differ

__all__ = ["MarksOfCalls", "order_violation"]

#: the greatest float of 32 bits
_GREATEST = torch.finfo(torch.float32).max
#: the marks of tensors without numbers that are not finite
_NOT_FINITE = (
    (NUMBERS, torch.isnan, "which has NaN"),
    (FINITE, torch.isinf, "which has infinite ones"),
)


class MarksOfCalls:
    """Checks the inputs of one graph; of most graphs nothing is read."""

    def __init__(self, graph: Graph) -> None:
        of_caches = set(map(asked_mark, asked_in(graph.marks)))  # asked before there are inputs
        self._marks = {mark: line for mark, line in graph.marks.items() if mark not in of_caches}
        self._tests = [(mark, test) for mark, test in _DIFFERENCES.items() if mark in graph.marks]
        self._settings = tuple(settings_in(graph.marks))
        self._autocasts = tuple(autocasts_in(graph.marks))
        self._paths = [leaf.path for leaf in graph.plan.inputs]
        self._ids = {path: (low, high) for path, low, high in ids_in(graph.marks)}
        self._contiguous = frozenset(contiguous_in(graph.marks))
        self._power = next(ints_in(graph.marks), None)
        #: the positions of the inputs that a call writes to
        self.written = _written_inputs(graph)
        #: a program of torch writes while it runs, as the model does; any other one when it has run
        self._are_written_last = bool(self.written) and graph.target != "torch"
        #: a cache that comes back is not looked through at each call
        self._returned = set(graph.outputs.structure.paths()).intersection(self._paths)

    def __bool__(self) -> bool:
        """False where any tensors do."""
        return bool(self._marks or self.written)

    def violations(self, inputs: Sequence[Any]) -> Iterator[Violation]:
        """Each input with a mark that the graph was not traced with, or that cannot be written."""
        for position in self.written:
            value = inputs[position]
            reason = _why_unwritable(value) if isinstance(value, torch.Tensor) else ""
            if reason:
                expected = f"a tensor that can be written: the call changes {self._paths[position]}"
                yield Violation(ViolationKind.CONDITION, "this graph", expected, reason)
        if self._are_written_last:
            yield from self._shown_writes(inputs)
        if not self._marks:
            return
        yield from self._of_the_block()
        seen: dict[int, int] = {}
        for position, value in enumerate(inputs):
            where = str(self._paths[position])
            power = 0 if where in self._ids else self._power
            if power and (large := large_int(value, power)) is not None:
                yield self._violation(ints_mark(power), f"{where}, which has {large}")
            if SINGLE in self._marks and type(value) is float and not abs(value) <= _GREATEST:
                yield self._violation(SINGLE, f"{where}, which is {value}")
            if not isinstance(value, torch.Tensor):
                continue
            yield from self._of_tensor(where, value)
            for mark, is_one, got in _NOT_FINITE:
                if mark in self._marks and self._has_any(position, value, is_one):
                    yield self._violation(mark, f"{where}, {got}")
            if where in self._ids and (wrong := other_int(value, *self._ids[where])) is not None:
                mark = ids_mark(where, *self._ids[where])
                yield self._violation(mark, f"{where}, which has {wrong}")
            first = seen.setdefault(id(value), position)
            if IDENTITY in self._marks and first != position:
                yield self._violation(IDENTITY, f"{where}, which is {self._paths[first]}")

    def _of_tensor(self, where: str, value: torch.Tensor) -> Iterator[Violation]:
        if where in self._contiguous and not value.is_contiguous():
            yield self._violation(contiguous_mark(where), f"{where}, which is not contiguous")
        for mark, difference_of in self._tests:
            if got := difference_of(value):
                yield self._violation(mark, f"{where}, {got}")

    def _shown_writes(self, inputs: Sequence[Any]) -> Iterator[Violation]:
        """Yields the inputs that share memory with a written input: the model reads the write there, and a graph that
        writes last does not.
        """
        spans = sorted((*_span_of(value), number) for number, value in enumerate(inputs))
        # of all inputs before in memory, and of those that are written, the one that ends last
        ends, ends_of_written = (0, 0), (0, 0)
        for first, last, number in spans:
            is_written = number in self.written
            end, other = ends if is_written else ends_of_written
            if first < min(last, end):
                written, shown = (number, other) if is_written else (other, number)
                where = self._paths[written]
                expected = f"a tensor of its own memory: the call changes {where}"
                got = f"{self._paths[shown]}, which is {where} or a part of it"
                yield Violation(ViolationKind.CONDITION, "this graph", expected, got)
            ends = max(ends, (last, number))
            ends_of_written = (
                max(ends_of_written, (last, number)) if is_written else ends_of_written
            )

    def _of_the_block(self) -> Iterator[Violation]:
        """Yields what the block around the call has otherwise than the one of the trace."""
        if UNRECORDED in self._marks and torch.is_grad_enabled():
            yield self._violation(UNRECORDED, "gradients recorded")
        if RECORDED in self._marks and not torch.is_grad_enabled():
            yield self._violation(RECORDED, "gradients switched off")
        for name, value in self._settings:
            now = str(operator.attrgetter(name)(torch)())
            if now != value:
                yield self._violation(setting_mark(name, value), now)
        for device, state in self._autocasts:
            now = autocast_state(device)
            if now not in ("off", state):  # a graph has the autocast of its own calls
                yield self._violation(autocast_mark(device, state), now)

    def _has_any(
        self, position: int, value: torch.Tensor, is_one: Callable[[torch.Tensor], torch.Tensor]
    ) -> bool:
        """True for a tensor of floats that has NaN, or an infinite number. A recorded call has shapes
        alone, and nothing is looked for.
        """
        is_float = value.is_floating_point() and not value.is_meta
        if not is_float or self._paths[position] in self._returned:
            return False
        value = as_numbers(value)
        # one NaN or infinite number makes the sum so, and many large ones do: these are told apart
        return not bool(value.sum().isfinite()) and bool(is_one(value).any())

    def _violation(self, mark: str, got: str) -> Violation:
        expected = f"{said_of(mark)}, because of {self._marks[mark]}"
        return Violation(ViolationKind.CONDITION, "this graph", expected, got)


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
    found |= {number for _, number in graph.outputs.written}
    if isinstance(graph.artifact, torch.export.ExportedProgram):
        names = written_placeholders(graph.artifact)
        specs = graph.artifact.graph_signature.input_specs
        inputs = [spec.arg for spec in specs if spec.kind is InputKind.USER_INPUT]
        found |= {n for n, one in enumerate(inputs) if getattr(one, "name", "") in names}
    return tuple(sorted(found))


def _why_unwritable(value: torch.Tensor) -> str:
    """Returns the reason for which torch refuses an operator of the model that writes to this
    tensor; empty where it does not.
    """
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


def _span_of(value: Any) -> tuple[int, int]:
    """The addresses between which the elements of a tensor lie; equal ones for what has none."""
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided or value.is_meta:
        return 0, 0
    begin = value.data_ptr()
    ends = ((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
    return begin, begin + (sum(ends) + 1) * value.element_size() if value.numel() else begin


def _gradients_of(value: torch.Tensor) -> str:
    if value.requires_grad:
        return "which does"
    return "" if value.grad is None else "which has a gradient"


def _memory_of(value: torch.Tensor) -> str:
    if value.layout != torch.strided or not value.is_contiguous():
        return "which is not"
    if value.storage_offset() != 0 or is_view(value):
        return "which is not"
    if value.is_neg() or value.is_conj():
        return "which stands in memory negated"
    is_shared = value.device.type == "cpu" and value.is_shared()  # type: ignore[no-untyped-call]
    return "which is in shared memory" if is_shared else ""


def _attributes_of(value: torch.Tensor) -> str:
    return f"which has {', '.join(vars(value))}" if vars(value) else ""


def _class_of(value: torch.Tensor) -> str:
    kind = type(value)
    return "" if kind is torch.Tensor else f"which is a {kind.__qualname__}"


def _inference_of(value: torch.Tensor) -> str:
    return "which was" if value.is_inference() else ""


def _writes_of(value: torch.Tensor) -> str:
    return "which was" if value.is_inference() or version_of_tensor(value) else ""


#: how a tensor differs from those of a trace, by the mark that the model reads; empty where it does not
_DIFFERENCES: dict[str, Callable[[torch.Tensor], str]] = {
    GRADIENTS: _gradients_of,
    MEMORY: _memory_of,
    ATTRIBUTES: _attributes_of,
    CLASSES: _class_of,
    INFERENCE: _inference_of,
    WRITES: _writes_of,
}


def order_violation(
    marks: Mapping[str, str], plan: Plan, given: Structure, signature: Signature
) -> Violation | None:
    """Returns the violation of a call with other orders of its dicts; None where the orders are
    those of the plan, or are not read.
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
    return Violation(ViolationKind.CONDITION, "this graph", expected, got)
