"""Finds out which inputs of one call an export reads, exchanges or ignores."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..core.call import Values
from ..core.path import Path
from ..lab.runner import ModelRunner
from ..materialise.arguments import close_arguments
from ..pytrees.comparisons.agree import agreement
from .findings import ExportFinding, Kind
from .serve import Fitted

__all__ = ["CallProbe"]


# How the outputs of an export differ from the result of the model, for one call.
#: tensors of more dimensions are not looked at in every order
_MOST_DIMENSIONS = 4


def agrees(expected: Any, got: Any, atol: float) -> bool:
    """True where two leaves are the same, within the tolerance."""
    return agreement([Path()], [expected], [got], atol=atol).holds


def output_findings(
    paths: Sequence[Path],
    expected: Sequence[torch.Tensor],
    results: Sequence[Any],
    order: Sequence[int | None],
    atol: float,
) -> Iterator[ExportFinding]:
    """Yields a finding for each wrong tensor of the result; ``results`` are the outputs of the
    file, ``order`` says which of them is which tensor.
    """
    found = [[n for n, one in enumerate(results) if agrees(right, one, atol)] for right in expected]
    is_fewer = len(results) < len(paths)
    taken = {places[0] for places in found if places} if is_fewer else set()
    for position, (path, right) in enumerate(zip(paths, expected, strict=True)):
        where = f"output{path.code()}"
        place, elsewhere = order[position], found[position]
        if is_fewer and elsewhere:
            continue
        place = None if place in taken else place
        got = results[place] if place is not None and place < len(results) else None
        if got is not None and agrees(right, got, atol):
            continue
        if elsewhere:
            text = f"is output {elsewhere[0]} of the file, where output {place} is expected"
            yield ExportFinding(Kind.OUTPUT, where, text)
        elif got is None:
            text = f"the file does not give it: it has {len(results)} of {len(paths)} outputs"
            yield ExportFinding(Kind.OUTPUT, where, text)
        else:
            yield ExportFinding(Kind.OUTPUT, where, _difference(right, got, atol))


def _difference(right: torch.Tensor, got: Any, atol: float) -> str:
    exchanged = _exchanged(right, got, atol)
    if exchanged:
        return f"is transposed: its dimensions stand in the order {list(exchanged)}"
    if right.shape == got.shape and right.dtype != got.dtype:
        return f"is {got.dtype}, the model gives {right.dtype}"
    if right.shape != got.shape and right.numel() == got.numel():
        return f"has the shape {tuple(got.shape)}, the model gives {tuple(right.shape)}"
    return agreement([Path()], [right], [got], atol=atol).note.removeprefix("output: ")


def _exchanged(right: torch.Tensor, got: torch.Tensor, atol: float) -> tuple[int, ...] | None:
    """The order of dimensions in which the output is right; None where there is none."""
    if right.ndim != got.ndim or not 2 <= right.ndim <= _MOST_DIMENSIONS:
        return None
    for order in itertools.permutations(range(right.ndim)):
        if list(order) == sorted(order):
            continue
        if agrees(right.permute(order), got, atol):
            return order
    return None


@dataclass(frozen=True, slots=True)
class CallProbe:
    """One call beside what the model gives for it. ``values`` are the leaves of its arguments."""

    fitted: Fitted
    values: Values
    subject: ModelRunner
    atol: float

    def findings(self) -> Iterator[ExportFinding]:
        """The findings about the outputs of this call, and about the inputs that explain them."""
        given = {name: self.values.get(path) for name, path in self.fitted.inputs.items()}
        wanted = self._wanted(self.values)
        if wanted is None or any(value is None for value in given.values()):
            return
        results = self._results(given)
        if results is None:  # it refuses the call, which the trials say
            return
        again = self._results(given) or []
        moved = [n for n, (a, b) in enumerate(zip(results, again, strict=False)) if not _same(a, b)]
        if moved:
            names = ", ".join(map(str, moved))
            text = f"the same call gives other results each time, in output {names} of the file"
            yield ExportFinding(Kind.UNSTABLE, "outputs", text)
            return
        exchanged = self._exchanged(given, wanted)
        if exchanged is not None:
            left, right = exchanged
            text = f"the file takes {right} for it: the two inputs are exchanged"
            yield ExportFinding(Kind.INPUT, left, text)
            return
        yield from self._ignored(given, wanted, results)
        order, paths = self.fitted.order, self.fitted.results
        yield from output_findings(paths, wanted, results, order, self.atol)

    def _wanted(self, values: Values) -> list[Any] | None:
        """The tensors of the model's result; None where it refuses the call or gives others."""
        try:
            arguments = close_arguments(self.fitted.graph.plan, values)
            found = dict(self.subject.try_out(arguments).items())
            return [found[path] for path in self.fitted.results]
        except Exception:
            return None

    def _results(self, given: Mapping[str, Any]) -> list[Any] | None:
        try:
            return list(self.fitted.exported.run(given))
        except Exception:
            return None

    def _agree(self, wanted: Sequence[Any], results: Sequence[Any]) -> bool:
        """True where every tensor of the result is right."""
        return all(
            place is not None and place < len(results) and agrees(right, results[place], self.atol)
            for place, right in zip(self.fitted.order, wanted, strict=True)
        )

    def _exchanged(self, given: Mapping[str, Any], wanted: Sequence[Any]) -> tuple[str, str] | None:
        """Two inputs with which the outputs are right when each stands for the other."""
        names = [name for name, value in given.items() if isinstance(value, torch.Tensor)]
        for number, left in enumerate(names):
            for right in names[number + 1 :]:
                one, other = given[left], given[right]
                if (one.ndim, one.dtype) != (other.ndim, other.dtype):
                    continue
                results = self._results({**given, left: other, right: one})
                if results is not None and self._agree(wanted, results):
                    return str(self.fitted.inputs[left]), str(self.fitted.inputs[right])
        return None

    def _ignored(
        self, given: Mapping[str, Any], wanted: Sequence[Any], results: Sequence[Any]
    ) -> Iterator[ExportFinding]:
        """The arguments that change what the model gives, and not what the file gives."""
        names = {path: name for name, path in self.fitted.inputs.items()}
        for leaf in self.fitted.graph.plan.inputs:
            changed = _changed(self.values.get(leaf.path))
            if changed is None:
                continue
            other = self._wanted({**self.values, leaf.path: changed})
            if other is None or all(map(_same, wanted, other)):
                continue
            name = names.get(leaf.path)
            if name is None:
                text = "the model reads it, and the file has no such input"
                yield ExportFinding(Kind.INPUT, str(leaf.path), text)
                continue
            found = self._results({**given, name: changed})
            if found is not None and all(map(_same, results, found)):
                text = "the model reads it, and the file gives the same whatever it is"
                yield ExportFinding(Kind.INPUT, str(leaf.path), text)


def _changed(value: Any) -> Any:
    """Returns the same values in other places, where that makes a difference."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return value + 1
    if not isinstance(value, torch.Tensor) or value.numel() < 2:
        return None
    changed = value.reshape(-1).roll(1).reshape(value.shape)
    return None if _same(value, changed) else changed


def _same(left: Any, right: Any) -> bool:
    """True for equal tensors of one shape, NaN being equal to NaN."""
    if not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor):
        return bool(left is right or left == right)
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    return torch.equal(left.nan_to_num(), right.nan_to_num())
