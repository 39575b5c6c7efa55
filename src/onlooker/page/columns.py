"""The sizes of calls as columns: one for each symbol, and one for each expression of symbols."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..core.call import Call
from ..core.drawing.alike import folded
from ..core.path import Path
from ..core.sizes.expression import Expression
from ..core.spec import Axis, ConstantSpec, TensorSpec
from .subject import KnownGraph, Subject

__all__ = ["SizeColumn", "columns_of"]

#: columns of expressions are left out beyond so many columns: their relations are drawn anyway
_MOST_COLUMNS = 8


@dataclass(frozen=True, slots=True)
class SizeColumn:
    """The sizes that are ``text`` in the plans, call by call; None for a call that has no such
    axis. ``axes`` are the axes of this size.
    """

    text: str
    axes: tuple[str, ...]
    values: tuple[int | None, ...]
    is_symbol: bool

    @property
    def seen(self) -> tuple[int, ...]:
        """The distinct sizes, the least first."""
        return tuple(sorted({size for size in self.values if size is not None}))


def columns_of(subject: Subject) -> list[SizeColumn]:
    """The symbols of all graphs, and then the expressions of axes, which are read from the calls."""
    symbols = dict.fromkeys(
        symbol.name for graph in subject.graphs for symbol in graph.plan.symbols
    )
    columns = [
        SizeColumn(
            name,
            tuple(
                folded([str(axis) for graph in subject.graphs for axis in graph.plan.axes_of(name)])
            ),
            tuple(sizes.get(name) for sizes in subject.sizes),
            is_symbol=True,
        )
        for name in symbols
    ]
    for text, axes in _expressions(subject.graphs).items():
        if len(columns) >= _MOST_COLUMNS:
            break
        values = sizes_at(axes, subject.calls)
        columns.append(SizeColumn(text, tuple(folded(map(str, axes))), values, is_symbol=False))
    return columns


def sizes_at(axes: Sequence[Axis], calls: Sequence[Call]) -> tuple[int | None, ...]:
    """The size of the first of some equal axes that each call has."""
    found = []
    for call in calls:
        leaves = dict(call.inputs.items())
        sizes = (_size(leaves.get(axis.path), axis.dim) for axis in axes)
        found.append(next((size for size in sizes if size is not None), None))
    return tuple(found)


def _size(spec: object, dim: int | None) -> int | None:
    if isinstance(spec, TensorSpec) and dim is not None and dim < len(spec.shape):
        return spec.shape[dim]
    if isinstance(spec, ConstantSpec) and dim is None and isinstance(spec.value, int):
        return spec.value
    return None


def _expressions(graphs: Sequence[KnownGraph]) -> dict[str, list[Axis]]:
    """The axes of each expression that is no symbol and no number."""
    found: dict[str, list[Axis]] = {}
    known: dict[tuple[Path, int | None], Expression] = {}
    for graph in graphs:
        for leaf in graph.plan.inputs:
            for axis, expression in leaf.axes:
                is_plain = expression.is_constant or expression.is_symbol
                if is_plain or (axis.path, axis.dim) in known:
                    continue
                known[axis.path, axis.dim] = expression
                found.setdefault(str(expression), []).append(axis)
    return found
