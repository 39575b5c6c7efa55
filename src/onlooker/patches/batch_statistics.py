"""Writes of a batch norm to its statistics, counted as all writes are.

Why: the schema of ``batch_norm`` names no write, so that torch does not count one, though it writes the
statistics of a batch in training. What was changed by a call is found by these counts.

Upstream: https://github.com/pytorch/pytorch/blob/v2.13.0/aten/src/ATen/native/native_functions.yaml,
``batch_norm``. It may go when ``tests/scenarios/test_batch_statistics.py`` passes without it.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from .swap import swapped

__all__ = ["batch_statistics_counted"]


def batch_statistics_counted() -> contextlib.AbstractContextManager[None]:
    """Inside the block ``torch.batch_norm`` counts its writes."""
    original = torch.batch_norm

    def counted(
        x: torch.Tensor, weight: Any, bias: Any, mean: Any, spread: Any, training: bool, *rest: Any
    ) -> torch.Tensor:
        result = original(x, weight, bias, mean, spread, training, *rest)
        if training and mean is not None:
            torch.autograd.graph.increment_version((mean, spread))
        return result

    return swapped(torch, "batch_norm", counted)
