"""The sizes that the inputs of a model of OpenVINO may have: numbers, and ranges."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

from ...core.plan import LeafPlan, Plan
from ...core.sizes.expression import Expression
from ...core.spec import Axis
from ...trace.graph import Graph

__all__ = ["exported_sizes_of", "range_of", "shape_of"]

#: so much larger than its least size is a symbol that nothing limits, where an expression of it is
#: asked whether it falls
_FAR = 2**20


def shape_of(plan: Plan, leaf: LeafPlan) -> Any:
    """The PartialShape of an input: a number for an axis that never changes, and elsewhere the least
    and the greatest size that the plan allows.
    """
    from openvino import Dimension, PartialShape

    dimensions = []
    for expression in leaf.shape:
        least, greatest = range_of(plan, expression)
        dimensions.append(Dimension(least, -1 if greatest is None else greatest))
    return PartialShape(dimensions)


def range_of(plan: Plan, expression: Expression) -> tuple[int, int | None]:
    """The least and the greatest value of an expression, None where nothing limits it.

    Expressions rise or fall with each symbol, so both are at ends of the ranges of the symbols.
    """
    symbols = [plan.symbol(name) for name in expression.symbols]
    is_open = any(symbol.high is None for symbol in symbols)
    ends = [
        (symbol.low, symbol.low + _FAR if symbol.high is None else symbol.high)
        for symbol in symbols
    ]
    corners = (dict(zip(expression.symbols, corner, strict=True)) for corner in product(*ends))
    values = [expression.evaluate(sizes) for sizes in corners]
    return max(0, min(values)), None if is_open else max(values)


def exported_sizes_of(graph: Graph, inputs: Sequence[Any]) -> dict[Axis, Expression | None]:
    """Per axis what the inputs of a model say: a number, or the expression of the plan where the
    model takes several sizes.

    ``inputs`` are the ports in the order of the plan, None for an input that the model lacks.
    """
    found: dict[Axis, Expression | None] = {}
    for leaf, port in zip(graph.plan.inputs, inputs, strict=True):
        for dim, expression in enumerate(leaf.shape):
            found[Axis(leaf.path, dim)] = _size(port, dim, expression)
        if leaf.value is not None:
            found[Axis(leaf.path, None)] = None if port is None else leaf.value
    return found


def _size(port: Any, dim: int, expression: Expression) -> Expression | None:
    if port is None:
        return None
    dimension = port.get_partial_shape()[dim]
    return Expression.constant(dimension.get_length()) if dimension.is_static else expression
