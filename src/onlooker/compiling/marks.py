"""Marks for torch.compile on the tensors of a call.

A mark of torch stands on a tensor, so each call is marked anew. The marks are unbacked: a size of 0 or
1 is no special case then, and axes with the same ``shape_id`` are one symbol.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from ..core.errors import UsageError
from ..core.support.enums import StrEnum
from ..infer.marks import AxisMark
from ..torch_internals.dynamo import marking

__all__ = ["Marking", "marked_call"]


class Marking(StrEnum):
    """The way in which axes are marked: by ``mark_unbacked``, with the sizes of 0 and 1 that need
    no graph of their own, or by ``maybe_mark_dynamic``, for models that decide by sizes.
    """

    UNBACKED = "mark_unbacked"
    DYNAMIC = "maybe_mark_dynamic"


@contextlib.contextmanager
def marked_call(
    arguments: Mapping[str, Any], marks: Sequence[AxisMark], kind: Marking
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


def _fits(here: Sequence[tuple[AxisMark, torch.Tensor]]) -> bool:
    """True where equal axes are equal, and all sizes are within the bounds."""
    sizes: dict[str, int] = {}
    for mark, tensor in here:
        size = tensor.shape[mark.dim]
        if size < mark.low or (mark.high is not None and size > mark.high):
            return False
        if sizes.setdefault(mark.shape_id, size) != size:
            return False
    return True


def _tensor_at(mark: AxisMark, arguments: Mapping[str, Any]) -> torch.Tensor | None:
    """The tensor that a mark is about, or None where the call has none of so many dimensions."""
    try:
        tensor = mark.path.follow(arguments)
    except UsageError:
        return None
    has_axis = isinstance(tensor, torch.Tensor) and mark.dim < tensor.ndim
    return tensor if has_axis else None


_UNBACKED_TAKES = frozenset(inspect.signature(marking.mark_unbacked).parameters)


def _mark(tensor: torch.Tensor, mark: AxisMark, kind: Marking) -> None:
    if kind is Marking.DYNAMIC:
        if tensor.shape[mark.dim] > 1:  # torch makes sizes of 0 and 1 constants in any case
            marking.maybe_mark_dynamic(tensor, mark.dim)
        return
    options: dict[str, Any] = {"shape_id": mark.shape_id, "min": mark.low, "max": mark.high}
    known = {name: value for name, value in options.items() if name in _UNBACKED_TAKES}
    marking.mark_unbacked(tensor, mark.dim, **known)
