"""The least and the greatest value of each leaf, over the kept calls."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..core.path import Path
from ..observe.store import Sample
from ..pytrees.numbers import as_numbers
from .arguments import leaf_values

__all__ = ["limits_of"]


def limits_of(samples: Sequence[Sample]) -> dict[Path, tuple[float, float]]:
    """Per path of a tensor of ints, or of a mask, the least and the greatest value; nothing else is looked at."""
    found: dict[Path, tuple[float, float]] = {}
    for sample in samples:
        for path, value in leaf_values(sample).items():
            if not isinstance(value, torch.Tensor) or value.numel() == 0 or value.is_complex():
                continue
            if value.dtype.is_floating_point and "mask" not in path.root:
                continue
            numbers = as_numbers(value)
            low, high = float(numbers.min()), float(numbers.max())
            before = found.get(path, (low, high))
            found[path] = (min(low, before[0]), max(high, before[1]))
    return found
