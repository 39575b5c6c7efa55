"""Ints that count positions: ``arange(past, past + sequence)`` stays that for other sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..core.path import Path
from ..core.plan import LeafPlan, Plan

__all__ = ["counted", "sizes_of"]


def sizes_of(plan: Plan, values: Mapping[Path, object]) -> dict[str, int]:
    """The sizes of the symbols in given values; a symbol that shows nowhere has its least size."""
    sizes: dict[str, int] = {}
    for leaf in plan.inputs:
        value = values.get(leaf.path)
        shape = getattr(value, "shape", ())
        for expression, size in zip(leaf.shape, shape, strict=False):
            if expression.is_symbol:
                sizes.setdefault(str(expression), int(size))
        if leaf.value is not None and leaf.value.is_symbol and isinstance(value, int):
            sizes.setdefault(str(leaf.value), value)
    return {symbol.name: sizes.get(symbol.name, symbol.low) for symbol in plan.symbols}


def counted(
    plan: Plan, leaf: LeafPlan, sizes: Mapping[str, int], seen: Sequence[Mapping[Path, Any]]
) -> torch.Tensor | None:
    """The positions for other sizes, or None for a leaf that does not count them.

    Every observed value has to be consecutive along its last dimension, in all rows alike, and to begin at
    the size of one symbol (the length of the past), in two distinct calls at least.
    """
    starts: list[tuple[int, dict[str, int]]] = []
    for values in seen:
        value = values.get(leaf.path)
        if isinstance(value, torch.Tensor):
            start = _start(value)
            if start is None:
                return None
            starts.append((start, sizes_of(plan, values)))
    if len({start for start, _ in starts}) < 2:
        return None
    for symbol in plan.symbols:
        if all(start == known[symbol.name] for start, known in starts):
            shape = [expression.evaluate(sizes) for expression in leaf.shape]
            like = next(v[leaf.path] for v in seen if isinstance(v.get(leaf.path), torch.Tensor))
            begin = sizes[symbol.name]
            return torch.arange(begin, begin + shape[-1], dtype=like.dtype, device=like.device).expand(shape).clone()
    return None


def _start(value: torch.Tensor) -> int | None:
    """Where consecutive ints begin; None for anything else."""
    if value.ndim == 0 or value.numel() == 0 or value.dtype not in (torch.int64, torch.int32):
        return None
    first = value.reshape(-1)[0]
    steps = torch.arange(value.shape[-1], dtype=value.dtype, device=value.device)
    return int(first) if bool((value == first + steps).all()) else None
