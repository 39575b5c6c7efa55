"""Grows a valid tensor from a seen one: rows are repeated, ids stay in the vocabulary, masks
stay masks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..core.errors import UnsupportedError
from ..pytrees.numbers import as_dtype, as_numbers, as_numbers_dtype
from ..pytrees.unusual import unusual

__all__ = ["filled_tensor", "resized"]

#: how much each repetition of observed floats is less than the one before, so that rows can be told
#: apart; no quotient of one repetition and the difference of two is a whole number
_STEP = 0.0703125


def resized(tensor: torch.Tensor, shape: Sequence[int], *, varied: bool = True) -> torch.Tensor:
    """A copy of ``tensor`` with another shape of the same rank.

    Along the first dimension rows are repeated; along the others floats are repeated and ints end
    in copies of their last value. A tensor that is too long loses its end. A mask grows and shrinks
    on the side where it is padded, so that no row is hidden completely; one that begins and ends
    with 0 marks places, and does as ids do, and a triangle stays one. With ``varied``, repeated floats are scaled and
    repeated ids are rolled along the second dimension, so that no two rows are equal; the corners
    of a box stay together.

    :raises UnsupportedError: ``unusual-tensor`` for a sparse tensor, or another one that is not
        dense

    >>> resized(torch.tensor([[0, 1, 1]]), (2, 4)).tolist()
    [[0, 1, 1, 1], [0, 1, 1, 1]]
    """
    if found := unusual(tensor):
        raise UnsupportedError(
            f"A tensor of another size cannot be made from {found.what}.",
            slug="unusual-tensor",
            hint=found.advice or f"Make a dense tensor of it: x{found.method}.",
        )
    if tuple(tensor.shape) == tuple(shape):
        return tensor.detach().clone()
    if 0 in shape:
        return tensor.detach().new_empty(tuple(shape))
    values, step = as_numbers(tensor.detach()), _step(tensor.dtype)
    if values.numel() == 0:
        return as_dtype(_invented(values, shape), tensor.dtype)
    # rows of padding may be a triangle by chance: no row of the result is hidden completely
    if _is_triangle(values) and shape[-2] <= shape[-1]:
        values = _triangle(values, shape)
    mask, floating = _is_mask(values), values.dtype.is_floating_point or values.dtype.is_complex
    for dim, (have, want) in enumerate(zip(values.shape, shape, strict=True)):
        if have == want:
            continue
        if mask and dim > 0 and not floating and not _is_inside(values, dim):
            index = _mask_index(have, want, right=_is_padded_right(values, dim))
        else:
            index = _index(have, want, cycle=dim == 0 or floating)
        block = (
            torch.arange(want) // have
            if dim == 0 or floating
            else torch.zeros(want, dtype=torch.int64)
        )
        values = values.index_select(dim, index.to(values.device))
        if varied and not mask and want and int(block.max()):
            values = (
                _scaled(values, dim, 1 / (1 + step * block))
                if floating
                else _rolled(values, dim, block)
            )
    return as_dtype(values, tensor.dtype).contiguous()


def _is_triangle(values: torch.Tensor) -> bool:
    """True for matrices of two values that meet in one diagonal, which ends in the last corner, as
    in a causal mask.
    """
    if values.ndim < 2 or min(values.shape[-2:]) < 2 or not _is_mask(values):
        return False
    # 1 0 0      each diagonal has one value, each row changes once at most: not at all in the last
    # 1 1 0      row, and between the last two columns in the row above it
    # 1 1 1
    has_equal_diagonals = bool((values[..., 1:, 1:] == values[..., :-1, :-1]).all())
    if not has_equal_diagonals:
        return False
    changes = values[..., 1:] != values[..., :-1]
    change_once = bool((changes.sum(-1) <= 1).all())
    last_row, row_above = changes[..., -1, :], changes[..., -2, :]
    ends_in_corner = not bool(last_row.any()) and bool(row_above[..., -1].all())
    return change_once and ends_in_corner


def _triangle(values: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Returns the same diagonals from the last row and column on, in matrices of another size."""
    rows, columns = values.shape[-2:]
    row_from_last = torch.arange(1 - shape[-2], 1)
    column_from_last = torch.arange(1 - shape[-1], 1)
    # 0 on the diagonal that ends in the last corner, more to its right
    diagonal = column_from_last[None, :] - row_from_last[:, None]
    diagonal = diagonal.clamp(1 - columns, rows - 1).to(values.device)
    # where each diagonal ends: in the last row to the left of the corner, else in the last column
    left_of_corner = diagonal.clamp(max=0)
    above_corner = diagonal.clamp(min=0)
    return values[..., rows - 1 - above_corner, columns - 1 + left_of_corner]


def _is_mask(values: torch.Tensor) -> bool:
    return values.dtype == torch.bool or (not values.dtype.is_complex and _has_two_values(values))


def _has_two_values(values: torch.Tensor) -> bool:
    """True where there are two values at most; of a cache one row tells that there are more."""
    row = values[(0,) * (values.ndim - 1)]
    return all(bool(((t == t.min()) | (t == t.max())).all()) for t in (row, values))


def _is_padded_right(values: torch.Tensor, dim: int) -> bool:
    """True for a mask that begins with what is seen and ends with what is hidden."""
    return bool(values.select(dim, 0).all()) and not bool(values.select(dim, -1).all())


def _is_inside(values: torch.Tensor, dim: int) -> bool:
    """True for a mask that marks places inside, as those of an image in a text: it goes along
    with the ids.
    """
    return (
        not bool(values.select(dim, 0).any())
        and not bool(values.select(dim, -1).any())
        and bool(values.any())
    )


def _index(have: int, want: int, *, cycle: bool) -> torch.Tensor:
    """The first ones, then all again or the last one again."""
    return torch.arange(want) % have if cycle else torch.arange(want).clamp(max=have - 1)


def _mask_index(have: int, want: int, *, right: bool) -> torch.Tensor:
    """A mask keeps the side that is seen, and repeats it."""
    if right:
        return (
            torch.arange(want)
            if want <= have
            else (torch.arange(want) - (want - have)).clamp(min=0)
        )
    return (
        torch.arange(have - want, have) if want <= have else torch.arange(want).clamp(max=have - 1)
    )


def _step(dtype: torch.dtype) -> float:
    """Not so little that it would be lost in a short dtype."""
    floating = as_numbers_dtype(dtype).is_floating_point
    return max(_STEP, torch.finfo(dtype).eps) if floating else _STEP


def _scaled(values: torch.Tensor, dim: int, factors: torch.Tensor) -> torch.Tensor:
    shape = [1] * values.ndim
    shape[dim] = -1
    return values * factors.reshape(shape).to(device=values.device, dtype=values.dtype)


def _rolled(values: torch.Tensor, dim: int, block: torch.Tensor) -> torch.Tensor:
    if values.ndim < 2 or dim != 0:
        return values
    rows = [
        row.roll(int(shift), dims=0) for row, shift in zip(values.unbind(0), block, strict=True)
    ]
    return torch.stack(rows)


def _invented(like: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Values where none were seen: small regular floats, zeros for anything else."""
    if not (like.dtype.is_floating_point or like.dtype.is_complex):
        return torch.zeros(tuple(shape), dtype=like.dtype, device=like.device)
    count = 1
    for size in shape:
        count *= size
    return (
        torch.sin(torch.arange(count, dtype=torch.float32) * 0.7)
        .reshape(tuple(shape))
        .to(like.device, like.dtype)
    )


def filled_tensor(kind: str, shape: Sequence[int], dtype: torch.dtype, device: str) -> torch.Tensor:
    """The fill of an absent tensor: ``ones``, or zeros for ``zeros`` and ``empty``."""
    make = torch.ones if kind == "ones" else torch.zeros
    return as_dtype(make(tuple(shape), dtype=as_numbers_dtype(dtype), device=device), dtype)
