"""How much work one run of a model is, without running it and without a clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..core.path import Path

__all__ = ["MOST_WORK", "parameters_of", "rows_of", "work_of"]

#: multiply-adds of one run above which shapes are probed with fake tensors: some seconds on a core
#: of a laptop
MOST_WORK = 100_000_000_000

#: how deep an argument stands that counts: ``x`` and ``images[0]`` do, the tensors of a cache do
#: not
_DEEPEST = 2


def work_of(model: Any, values: Mapping[Path, Any]) -> int:
    """An estimate of the multiply-adds of one run: the parameters, times the rows of the largest
    argument.

    The rows of ids are all of their elements, those of other tensors the vectors along their last
    dimension. A transformer reads its parameters once for each token, so the estimate is close for
    it. Images have one row per line and channel, about as many as a vision transformer has patches.

    >>> from onlooker.core.path import Name
    >>> work_of(torch.nn.Linear(4, 2, bias=False), {Path((Name("input"),)): torch.zeros(3, 4)})
    24
    """
    return parameters_of(model) * rows_of(values)


def parameters_of(model: Any) -> int:
    """The number of numbers in all parameters; 0 for what is no module."""
    if not isinstance(model, torch.nn.Module):
        return 0
    return sum(parameter.numel() for parameter in model.parameters())


def rows_of(values: Mapping[Path, Any]) -> int:
    """The rows of the largest argument, of those that count; 1 without any."""
    arguments = [value for path, value in values.items() if len(path.entries) <= _DEEPEST]
    tensors = [value for value in arguments if isinstance(value, torch.Tensor)]
    return max(map(_rows, tensors), default=1)


def _rows(tensor: torch.Tensor) -> int:
    """The vectors of a tensor: its elements where they are ids."""
    is_vectors = tensor.dtype.is_floating_point or tensor.dtype.is_complex
    if is_vectors and tensor.ndim:
        return tensor.numel() // max(tensor.shape[-1], 1)
    return tensor.numel()
