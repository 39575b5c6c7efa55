"""Extreme values of the arguments of a call: large, zero, negative, infinite, not a number."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..core.path import Path
from ..core.plan import Plan
from ..observing.store import Sample
from .domains import Domains, domains_of

__all__ = ["BOUNDLESS", "EXTREME", "INFINITE", "LARGE", "extreme_values"]

#: the floats that compare; torch computes with no other ones
_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
#: repeated over the elements of a float tensor
EXTREME = (1e3, -1e3, 0.0, -0.0, 1.5, -1.5, 60.0, -60.0)
#: the same for a runtime that rounds in another way
LARGE = (60.0, -60.0, 0.0, -0.0, 1.5, -1.5)
#: the same with what no number compares with
INFINITE = (float("nan"), 1.0, float("inf"), -1.0, float("-inf"), 0.5, 2.0)
#: the same without NaN, for a runtime that does not carry it through
BOUNDLESS = (1.0, float("inf"), -1.0, float("-inf"), 0.5, 2.0)


def extreme_values(
    plan: Plan,
    values: Mapping[Path, Any],
    samples: Sequence[Sample],
    pattern: Sequence[float] = EXTREME,
    *,
    domains: Domains | None = None,
) -> dict[Path, Any] | None:
    """The values with every float tensor overwritten by large, zero and negative numbers; None
    where there is none.

    Masks and ints stay as they are. A tensor of another domain (probabilities, sorted times) gets
    the extremes of its domain; where numbers are not finite, it stays.
    """
    domains, changed = domains or domains_of(samples), dict(values)
    finite = all(math.isfinite(number) for number in pattern)
    for leaf in plan.inputs:
        value = values[leaf.path]
        if not isinstance(value, torch.Tensor) or value.dtype not in _DTYPES or value.numel() == 0:
            continue
        domain = domains.of(leaf.path)
        if (
            value.layout != torch.strided
            or domain.is_mask
            or domain.is_binary
            or not (finite or domain.is_plain)
        ):
            continue
        numbers = torch.tensor(pattern, dtype=torch.float64)
        repeated = numbers.repeat(-(-value.numel() // len(pattern)))[: value.numel()]
        changed[leaf.path] = repeated.reshape(value.shape).to(value.device, value.dtype)
    changed = domains.lawful(changed)
    same = all(changed[path] is values[path] for path in values)
    return None if same else changed
