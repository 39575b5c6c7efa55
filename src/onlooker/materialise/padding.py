"""Masks that hide padding, and such that hide nothing, in place of those of a call."""

from __future__ import annotations

from typing import Any

import torch

from ..core.call import Values
from ..core.plan import LeafPlan
from ..pytrees.numbers import is_same
from .arguments import Calls
from .domain import Domain

__all__ = ["with_padding"]


def with_padding(calls: Calls, values: Values, *, hidden: bool) -> Values | None:
    """Returns the values with padding masks that hide the beginning of rows, or nothing; None where
    that changes nothing.

    Where they are ``hidden``, half of the first row is, nothing of the second one, a third of the
    third one, a quarter of the fourth one and so on.
    """
    masks = [
        leaf.path
        for leaf in calls.plan.inputs
        if _is_padding_mask(leaf, values[leaf.path], calls.domains.of(leaf.path))
    ]
    if not masks:
        return None
    changed = dict(values)
    for path in masks:
        mask = torch.ones_like(values[path])
        for row in range(mask.shape[0] if hidden else 0):
            mask[row, : 0 if row == 1 else mask.shape[1] // max(row + 1, 2)] = 0
        changed[path] = ~mask if calls.domains.of(path).ones_hide else mask
    return None if all(is_same(changed[path], values[path]) for path in masks) else changed


def _is_padding_mask(leaf: LeafPlan, value: Any, domain: Domain) -> bool:
    """True for a mask of two dimensions that hides positions by zeros, one for which ones are
    neutral among them.
    """
    if not isinstance(value, torch.Tensor) or value.ndim != 2 or value.dtype.is_floating_point:
        return False
    is_neutral = leaf.fill is not None and leaf.fill.kind == "ones"
    return (domain.is_mask or is_neutral) and value.shape[1] > 1
