"""What a model itself demands of the sizes of its inputs.

Calls of (frames, height, width) = (4, 8, 12) and (2, 14, 6) with tables of 96 and of 42 rows say little: many
expressions give these numbers. The model says which one it is, where it multiplies the table with what it made of
the other input: ``frames * (height // 2) * (width // 2)``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..core.sizes.expression import Expression
from .relations import Column
from .relations.base import shared
from .samples import Demand

__all__ = ["DEMANDED", "in_columns"]

#: what a plan calls a relation that the model was seen to demand
DEMANDED = "demanded"


def in_columns(
    demands: Sequence[Demand], columns: Sequence[Column]
) -> Iterator[tuple[Column, Expression]]:
    """The demands as relations between classes of axes, those that hold in all rows."""
    class_of = {axis: column for column in columns for axis in column.axes}
    for demand in demands:
        used = {name: demand.axes[name] for name in demand.expression.symbols}
        if demand.axis not in class_of or not class_of.keys() >= set(used.values()):
            continue
        target = class_of[demand.axis]
        sources = {name: class_of[axis] for name, axis in used.items()}
        if target in sources.values():
            continue
        rows = shared(target, *sources.values())
        names = list(sources)
        if all(
            demand.expression.evaluate(dict(zip(names, sizes, strict=True))) == size
            for size, *sizes in rows
        ):
            spelled = {name: Expression.symbol(column.name) for name, column in sources.items()}
            yield target, demand.expression.replaced(spelled)
