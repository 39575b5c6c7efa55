"""Rows of several tensors one after another, filled up to one length, where the lengths are values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...torch_internals.sizes import free_unbacked_symbols

__all__ = ["pad_sequence_of_values", "padded_rows"]


def padded_rows(
    whole: torch.Tensor,
    lengths: torch.Tensor,
    width: Any,
    padding_value: float,
    padding_side: str = "right",
) -> torch.Tensor:
    """The tensor ``[parts, width, ...]`` of parts that have ``lengths`` of the rows of ``whole`` each."""
    row = torch.arange(width)
    if padding_side == "left":
        row = row - (width - lengths)[:, None]
    is_row = ((row >= 0) & (row < lengths[:, None])).to(whole.device)
    begins = (lengths.cumsum(0) - lengths)[:, None]
    place = torch.where(is_row, (begins + row).to(whole.device), 0)
    found = whole.index_select(0, place.flatten())
    found = found.reshape(lengths.shape[0], width, *whole.shape[1:])
    is_row = is_row.reshape(*is_row.shape, *(1 for _ in whole.shape[1:]))
    padding = torch.full((), padding_value, dtype=whole.dtype, device=whole.device)
    return torch.where(is_row, found, padding)


def pad_sequence_of_values(
    sequences: Sequence[torch.Tensor],
    batch_first: bool = False,
    padding_value: float = 0.0,
    padding_side: str = "right",
) -> Any:
    """``pad_sequence`` for tensors whose lengths are values: torch compares them to find the longest."""
    sizes = [one.shape[0] for one in sequences]
    if not any(isinstance(size, torch.SymInt) and free_unbacked_symbols(size) for size in sizes):
        return NotImplemented
    lengths = torch.stack([torch.scalar_tensor(size, dtype=torch.int64) for size in sizes])
    greatest = lengths.max().item()
    padded = padded_rows(torch.cat(list(sequences)), lengths, greatest, padding_value, padding_side)
    return padded if batch_first else padded.transpose(0, 1)
