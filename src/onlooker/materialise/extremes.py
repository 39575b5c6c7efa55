"""Extreme values of the arguments of a call: large, zero, negative, infinite, not a number."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ..core.call import Values
from .arguments import Calls

__all__ = ["BOUNDLESS", "EXTREME", "FAR", "FLAT", "GREAT", "INFINITE", "LARGE", "extreme_values"]

#: the floats that compare; torch computes with no other ones
_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
#: repeated over the elements of a float tensor
EXTREME = (1e3, -1e3, 0.0, -0.0, 1.5, -1.5, 60.0, -60.0)
#: the same for a runtime that rounds in another way
LARGE = (60.0, -60.0, 0.0, -0.0, 1.5, -1.5)
#: rows of one number: their variance is 0, and so is the length of the first ones
FLAT = ((0.0,), (1.5,))
#: far from 0, and close to one another: a variance by moments, the mean of squares less the square of the mean,
#: loses its digits
FAR = (1000.0, 1000.5, 999.0, 1001.0, 999.5, 1002.0, 998.0)
#: what exponents make infinite
GREAT = ((1e4,), (-1e4,), EXTREME)
#: the same with what no number compares with
INFINITE = (float("nan"), 1.0, float("inf"), -1.0, float("-inf"), 0.5, 2.0)
#: the same without NaN, for a runtime that does not carry it through
BOUNDLESS = (1.0, float("inf"), -1.0, float("-inf"), 0.5, 2.0)


def extreme_values(calls: Calls, values: Values, pattern: Sequence[float]) -> Values | None:
    """The values with every float tensor overwritten by large, zero and negative numbers; None
    where there is none.

    Masks, ints and weights stay as they are: a model of such weights is no model that anybody runs, and what
    its runtimes round tells nothing of the program. A tensor of another domain (probabilities, sorted times) gets
    the extremes of its domain; where numbers are not finite, it stays.
    """
    domains, changed = calls.domains, dict(values)
    finite = all(math.isfinite(number) for number in pattern)
    for leaf in calls.plan.inputs:
        value = values[leaf.path]
        if not isinstance(value, torch.Tensor) or value.dtype not in _DTYPES or value.numel() == 0:
            continue
        domain = domains.of(leaf.path)
        if (
            value.layout != torch.strided
            or domain.is_mask
            or domain.is_binary
            or leaf.path.root == calls.weights
            or not (finite or domain.is_plain)
        ):
            continue
        numbers = torch.tensor(pattern, dtype=torch.float64)
        repeated = numbers.repeat(-(-value.numel() // len(pattern)))[: value.numel()]
        changed[leaf.path] = repeated.reshape(value.shape).to(value.device, value.dtype)
    return domains.changed(values, changed)
