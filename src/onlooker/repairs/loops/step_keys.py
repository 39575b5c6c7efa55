"""The keys by which steps read and write tensors: ``x[:, t]``, ``x[t : t + 3]``, ``x[t, lengths[t]]``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch

from ...torch_internals.modes import WithoutFunctions
from ...torch_internals.sizes import expression_of, is_less, statically_known_true
from ..numbers.sized_operators import BASIC_ENTRIES
from .step_indices import StepIndex
from .steps import Loop, leaves_of

__all__ = [
    "BASIC",
    "BESIDE_OTHERS",
    "are_within",
    "begins_of_cuts",
    "has_shape",
    "in_two",
    "is_last_shorter",
    "is_of_ints",
    "is_whole",
    "is_within",
    "places_of_numbers",
    "text_of_entry",
    "width_of",
]

BESIDE_OTHERS = "the loop index is used together with another index, as in x[t, other]"
#: the entries of a key that read no values
BASIC = (*BASIC_ENTRIES, StepIndex)


def places_of_numbers(key: Any) -> list[int]:
    """The places in a key of ints that tensors without dimensions have, where these are all tensors of the key, and
    nothing that gives a dimension is between them.
    """
    entries = key if isinstance(key, tuple) else (key,)
    places = [place for place, one in enumerate(entries) if isinstance(one, torch.Tensor)]
    if not places or any(isinstance(one, list) for one in entries):
        return []
    between = entries[places[0] : places[-1]]
    if not all(isinstance(one, (torch.Tensor, int, torch.SymInt, StepIndex)) for one in between):
        return []
    with WithoutFunctions():  # the model reads none of these sizes
        are_numbers = all(entries[n].ndim == 0 and is_of_ints(entries[n]) for n in places)
    return places if are_numbers else []


def is_whole(rest: tuple[Any, ...]) -> bool:
    """True for the entries of a key that read all of a row."""
    return all(type(entry) is slice and entry == slice(None) for entry in rest)


def is_within(tensor: torch.Tensor, dim: int, index: StepIndex) -> bool:
    """True where an index is a row of a tensor in each step, counted from the first one."""
    with WithoutFunctions():  # the model reads none of these sizes
        least, greatest = index.ends
        return is_less(-1, least) and is_less(greatest, tensor.shape[dim])


def are_within(tensor: torch.Tensor, dim: int, index: StepIndex, width: Any) -> bool:
    """True where so many rows from an index on are there in each step: the graph holds for such sizes."""
    with WithoutFunctions():  # the model reads none of these sizes
        least, greatest = index.ends
        size, end = tensor.shape[dim], greatest + width
        return (is_less(-1, least) or bool(least >= 0)) and (
            is_less(end, size + 1) or bool(end <= size)
        )


def is_last_shorter(tensor: torch.Tensor, dim: int, index: StepIndex, width: Any) -> bool:
    """True for rows of which each step reads its own, and for which the last one alone may find too few."""
    with WithoutFunctions():  # the model reads none of these sizes
        size, is_own = tensor.shape[dim], statically_known_true(index.each == width)
        return (
            is_own and not is_less(index.last + width, size + 1) and is_less(index.last, size + 1)
        )


def is_of_ints(tensor: torch.Tensor) -> bool:
    """True for a tensor of whole numbers."""
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool)


def has_shape(value: Any, shape: Sequence[Any]) -> bool:
    """True for a tensor that is known to have a shape."""
    return isinstance(value, torch.Tensor) and (
        value.ndim == len(shape)
        and all(
            statically_known_true(one == other)
            for one, other in zip(shape, value.shape, strict=True)
        )
    )


def in_two(
    loop: Loop, key: tuple[Any, ...], n_dims: int
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The keys of ``x[:, t][0, other]``, which is ``x[0, t, other]``: that of a row, and that in the row.

    :raises NotRolledError: where another index, or a tensor, stands before the index of the step
    """
    places = [n for n, entry in enumerate(key) if isinstance(entry, StepIndex)]
    if len(places) != 1:
        raise loop.refused(BESIDE_OTHERS)
    before, after = key[: places[0]], key[places[0] + 1 :]
    counted = key if any(entry is ... for entry in before) else before
    if leaves_of((before, after), StepIndex) or any(type(e) not in BASIC for e in counted):
        raise loop.refused(BESIDE_OTHERS)
    n_given = sum(entry is not None and entry is not ... for entry in key)
    dim = sum(n_dims - n_given if entry is ... else int(entry is not None) for entry in before)
    return (*[slice(None)] * dim, key[places[0]]), (*before, *after)


def begins_of_cuts(loop: Loop, entries: tuple[Any, ...]) -> tuple[tuple[Any, ...], list[Any]]:
    """The key with ``t`` for ``t : t + 3``, and how many rows each such slice has."""
    found, widths = list(entries), []
    for number, entry in enumerate(entries):
        if isinstance(entry, slice) and leaves_of(entry, StepIndex):
            width = width_of(entry)
            if width is None:
                raise loop.refused("a step reads as many rows as its index says")
            found[number] = entry.start
            expression = sympy.sympify(expression_of(width))
            widths.append(int(expression) if expression.is_Integer else width)
    return tuple(found), widths


def width_of(entry: slice) -> Any:
    """How many rows each step reads by a slice: at least 1. None where that hangs on the index of the step."""
    begin, end = entry.start, entry.stop
    if not isinstance(begin, StepIndex) or not isinstance(end, StepIndex) or entry.step:
        return None
    width = end.first - begin.first
    return width if begin.goes_with(end) and statically_known_true(width >= 1) else None


def text_of_entry(entry: Any) -> str:
    """An entry of a key as text, equal for those that read the same."""
    if isinstance(entry, StepIndex):
        return f"{entry.first} + {entry.each} * step"
    return str(entry)
