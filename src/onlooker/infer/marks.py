"""The axes of arguments that change between calls: which of them are equal, and how far they go.

An axis changes where its size has a symbol in some plan, and also where it is a number in each, but
not the same one: torch.compile is called with both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..core.path import Path
from ..core.plan import Plan
from ..core.sizes.expression import Expression

__all__ = ["AxisMark", "marks_of"]


@dataclass(frozen=True, slots=True)
class AxisMark:
    """One axis that changes.

    ``expressions`` are the sizes of the axis in the symbols of each plan, None in a plan that lacks
    the argument: axes with equal expressions have equal sizes. ``low`` and ``high`` are bounds of the
    size in all plans, where the axis is a symbol of its own.
    """

    path: Path
    dim: int
    expressions: tuple[str | None, ...]
    low: int = 0
    high: int | None = None

    @property
    def shape_id(self) -> str:
        """The name that equal axes share."""
        return " or ".join(dict.fromkeys(text for text in self.expressions if text))


def marks_of(plans: Sequence[Plan]) -> tuple[AxisMark, ...]:
    """The axes that change in some plan."""
    axes: dict[tuple[Path, int], list[tuple[Plan, Expression] | None]] = {}
    for number, plan in enumerate(plans):
        for leaf in plan.inputs:
            for axis, expression in leaf.axes if leaf.is_tensor else ():
                rows = axes.setdefault((axis.path, axis.dim or 0), [None] * len(plans))
                rows[number] = plan, expression
    found = []
    for (path, dim), rows in axes.items():
        known = [row for row in rows if row is not None]
        expressions = [expression for _, expression in known]
        has_symbols = any(expression.symbols for expression in expressions)
        is_another_number = len(set(map(str, expressions))) > 1
        if has_symbols or is_another_number:
            texts = tuple(None if row is None else str(row[1]) for row in rows)
            found.append(AxisMark(path, dim, texts, *_bounds(known)))
    return tuple(found)


def _bounds(known: Sequence[tuple[Plan, Expression]]) -> tuple[int, int | None]:
    """The least and the greatest size of an axis in all plans; 0 and None where it is a sum or a
    product of symbols.
    """
    lows, highs = [], []
    for plan, expression in known:
        if not expression.is_symbol:
            return 0, None
        symbol = plan.symbol(str(expression))
        lows.append(symbol.low)
        highs.append(symbol.high)
    bounded = [high for high in highs if high is not None]
    return min(lows), max(bounded) if len(bounded) == len(highs) else None
