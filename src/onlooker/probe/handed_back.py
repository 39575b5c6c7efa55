"""Outputs that are inputs, handed back as they came: they say nothing of whether the model reads them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from ..pytrees.numbers import as_numbers, is_same

__all__ = ["computed"]


def computed(inputs: Iterable[Any], outputs: Sequence[Any]) -> list[int]:
    """The positions of the outputs that are no input as it came; all of them where every one is.

    >>> x = torch.arange(3.0)
    >>> computed([x], [x + 1, x.clone()]), computed([x], [x.clone()])
    ([0], [0])
    """
    known: dict[tuple[Any, ...], list[torch.Tensor]] = {}
    for value in inputs:
        if isinstance(value, torch.Tensor):
            known.setdefault(_key(value), []).append(value)
    own = [i for i, leaf in enumerate(outputs) if not _is_known(leaf, known)]
    return own if any(isinstance(outputs[i], torch.Tensor) for i in own) else list(range(len(outputs)))


def _is_known(leaf: Any, known: dict[tuple[Any, ...], list[torch.Tensor]]) -> bool:
    if not isinstance(leaf, torch.Tensor) or leaf.numel() < 2:
        return False
    return any(is_same(leaf, value) for value in known.get(_key(leaf), ()))


def _key(value: torch.Tensor) -> tuple[Any, ...]:
    """What equal tensors share, so that few are compared element by element."""
    first = as_numbers(value.detach()).reshape(-1)[0].item() if value.numel() else None
    return tuple(value.shape), value.dtype, value.device, first
