"""Dynamic shapes as torch.export wants them: by hints, which it may refine by guards."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import torch

from ..core.path import Path
from ..core.plan import Plan, Range
from ..core.sizes.expression import Expression

__all__ = ["dynamic_shapes", "least_of", "limits_of"]


def dynamic_shapes(plan: Plan, names: Mapping[Path, str]) -> dict[str, Any]:
    """``{input: {dimension: Dim}}``; an int is a dynamic input, a float a tensor without
    dimensions.
    """
    shapes: dict[str, Any] = {}
    for leaf in plan.inputs:
        name = names[leaf.path]
        if leaf.is_float:
            shapes[name] = {}
            continue
        if leaf.value is not None and not leaf.value.symbols:
            shapes[name] = None
            continue
        if not leaf.is_tensor:
            shapes[name] = torch.export.Dim.AUTO
            continue
        changing = {dim: e for dim, e in enumerate(leaf.shape) if e.symbols}
        shapes[name] = {dim: _hint(plan, e) for dim, e in changing.items()}
    return shapes


def _hint(plan: Plan, expression: Expression) -> Any:
    _, high = limits_of(plan, expression)
    return torch.export.Dim.AUTO if high is None else torch.export.Dim.AUTO(max=high)


def limits_of(plan: Plan, expression: Expression) -> Range:
    """The least size that torch must be told, and the greatest one that the ranges of symbols
    allow.

    Expressions rise or fall with each symbol, so the greatest is at an end of each range.
    """
    symbols = [plan.symbol(name) for name in expression.symbols]
    least = least_of(plan, expression)
    ends = [(symbol.low, symbol.high) for symbol in symbols if symbol.high is not None]
    if len(ends) < len(symbols):
        return least, None
    choices = (dict(zip(expression.symbols, choice, strict=True)) for choice in product(*ends))
    return least, max(expression.evaluate(sizes) for sizes in choices)


def least_of(plan: Plan, expression: Expression) -> int | None:
    """The least size, where torch must be told: it starts each symbol at 2, so a sum of two
    starts at 4.
    """
    lows = {name: max(plan.symbol(name).low, 2) for name in expression.symbols}
    least = expression.evaluate(lows)
    if least <= 2:
        return None
    for name, low in lows.items():
        if expression.evaluate({**lows, name: low + 1}) < least:
            return None  # it falls where this symbol grows
    return least
