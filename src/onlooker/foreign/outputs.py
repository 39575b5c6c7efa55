"""How the outputs of an export differ from the result of the model, for one call."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ..core.path import Path
from ..pytrees.agree import agreement
from .findings import Finding, Kind

__all__ = ["agrees", "output_findings"]

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
) -> Iterator[Finding]:
    """What is wrong with each tensor of the result; ``results`` are the outputs of the file,
    ``order`` says which of them is which tensor.
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
            yield Finding(Kind.OUTPUT, where, text)
        elif got is None:
            text = f"the file does not give it: it has {len(results)} of {len(paths)} outputs"
            yield Finding(Kind.OUTPUT, where, text)
        else:
            yield Finding(Kind.OUTPUT, where, _difference(right, got, atol))


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
