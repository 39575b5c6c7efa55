"""Marks for torch.compile: which axes of the arguments change, which of them are equal, and how far.

A mark of torch stands on a tensor, so each call is marked anew. The marks are unbacked: a size of 0 or
1 is no special case then, and axes with the same ``shape_id`` are one symbol.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..core.enums import StrEnum
from ..core.errors import UsageError
from ..core.expression import Expression
from ..core.path import Path
from ..core.plan import Plan
from ..torch_internals.dynamo import marking

__all__ = ["Mark", "Marking", "marked_call", "marks_of"]


@dataclass(frozen=True, slots=True)
class Mark:
    """One axis that changes.

    ``expressions`` are the sizes of the axis in the symbols of each plan, None in a plan that lacks
    the argument: axes with equal expressions have equal sizes. ``low`` and ``high`` are bounds of the
    size in all plans, where the axis is a symbol of its own.
    """

    path: Path
    dim: int
    expressions: tuple[str | None, ...]
    low: int = 0
    high: int | None = None

    @property
    def shape_id(self) -> str:
        """The name that equal axes share."""
        return " or ".join(dict.fromkeys(text for text in self.expressions if text))


class Marking(StrEnum):
    """How axes are marked: by ``mark_unbacked``, with which sizes of 0 and 1 need no graph of their
    own, or by ``maybe_mark_dynamic``, for models that decide by sizes.
    """

    UNBACKED = "mark_unbacked"
    DYNAMIC = "maybe_mark_dynamic"


def marks_of(plans: Sequence[Plan]) -> tuple[Mark, ...]:
    """The axes that change in some plan."""
    axes: dict[tuple[Path, int], list[tuple[Plan, Expression] | None]] = {}
    for number, plan in enumerate(plans):
        for leaf in plan.inputs:
            for axis, expression in leaf.axes if leaf.is_tensor else ():
                rows = axes.setdefault((axis.path, axis.dim or 0), [None] * len(plans))
                rows[number] = plan, expression
    found = []
    for (path, dim), rows in axes.items():
        known = [row for row in rows if row is not None]
        sizes = {str(expression) for _, expression in known}
        if any(expression.symbols for _, expression in known) or len(sizes) > 1:
            texts = tuple(None if row is None else str(row[1]) for row in rows)
            found.append(Mark(path, dim, texts, *_bounds(known)))
    return tuple(found)


def _bounds(known: Sequence[tuple[Plan, Expression]]) -> tuple[int, int | None]:
    """The least and the greatest size of an axis in all plans; 0 and None where it is a sum or a
    product of symbols.
    """
    lows, highs = [], []
    for plan, expression in known:
        if not expression.is_symbol:
            return 0, None
        symbol = plan.symbol(str(expression))
        lows.append(symbol.low)
        highs.append(symbol.high)
    bounded = [high for high in highs if high is not None]
    return min(lows), max(bounded) if len(bounded) == len(highs) else None


@contextlib.contextmanager
def marked_call(
    arguments: Mapping[str, Any], marks: Sequence[Mark], kind: Marking
) -> Iterator[None]:
    """Inside the block the tensors of one call are marked.

    A call in which axes that share a ``shape_id`` have other sizes, or whose sizes are beyond the
    bounds, is not marked at all: torch would refuse it, and compiles it for itself without marks.
    """
    present = [(mark, _tensor_at(mark, arguments)) for mark in marks]
    here = [(mark, tensor) for mark, tensor in present if tensor is not None]
    if not _fits(here):
        yield
        return
    before = {id(tensor): (tensor, dict(vars(tensor))) for _, tensor in here}
    try:
        for mark, tensor in here:
            _mark(tensor, mark, kind)
        yield
    finally:
        for tensor, attributes in before.values():
            vars(tensor).clear()
            vars(tensor).update(attributes)


def _fits(here: Sequence[tuple[Mark, torch.Tensor]]) -> bool:
    """True where equal axes are equal, and all sizes are within the bounds."""
    sizes: dict[str, int] = {}
    for mark, tensor in here:
        size = tensor.shape[mark.dim]
        if size < mark.low or (mark.high is not None and size > mark.high):
            return False
        if sizes.setdefault(mark.shape_id, size) != size:
            return False
    return True


def _tensor_at(mark: Mark, arguments: Mapping[str, Any]) -> torch.Tensor | None:
    """The tensor that a mark is about, or None where the call has none of so many dimensions."""
    try:
        tensor = mark.path.follow(arguments)
    except UsageError:
        return None
    has_axis = isinstance(tensor, torch.Tensor) and mark.dim < tensor.ndim
    return tensor if has_axis else None


_UNBACKED_TAKES = frozenset(inspect.signature(marking.mark_unbacked).parameters)


def _mark(tensor: torch.Tensor, mark: Mark, kind: Marking) -> None:
    if kind is Marking.DYNAMIC:
        if tensor.shape[mark.dim] > 1:  # torch makes sizes of 0 and 1 constants in any case
            marking.maybe_mark_dynamic(tensor, mark.dim)
        return
    options: dict[str, Any] = {"shape_id": mark.shape_id, "min": mark.low, "max": mark.high}
    known = {name: value for name, value in options.items() if name in _UNBACKED_TAKES}
    marking.mark_unbacked(tensor, mark.dim, **known)
