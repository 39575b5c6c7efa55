"""Makes values for leaves that a call does not have, for the sizes of the call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
import torch

from ..core.plan import LeafPlan, Plan
from ..core.sizes.expression import Expression, Sizes
from ..materialise.counting import sizes_of
from ..pytrees.open import dtype_of

__all__ = ["Filler"]

#: the shape for a size per symbol
Shape = Callable[[Mapping[str, int]], tuple[int, ...]]


class Filler:
    """Fills leaves of a plan, always the same ones.

    Leaves of one shape, dtype and kind are computed once; tensors without elements are shared among
    them.
    """

    def __init__(self, plan: Plan, missing: Sequence[tuple[int, LeafPlan]]) -> None:
        self._plan = plan
        self._sources = _sources(plan)
        self._numbers = [
            (p, leaf.fill.value) for p, leaf in missing if leaf.fill and not leaf.is_tensor
        ]
        groups: dict[tuple[Any, ...], list[int]] = {}
        shapes: dict[tuple[Any, ...], Shape] = {}
        for position, leaf in missing:
            if leaf.is_tensor and leaf.fill is not None:
                key = (leaf.shape, leaf.fill, leaf.dtype, leaf.device)
                groups.setdefault(key, []).append(position)
                shapes.setdefault(key, _shape(leaf))
        self._groups = [
            (shapes[key], key[1].kind == "ones", dtype_of(key[2]), torch.device(key[3]), positions)
            for key, positions in groups.items()
        ]

    def fill(self, inputs: list[Any]) -> None:
        """Puts the fills at their positions in the inputs of the plan."""
        for position, number in self._numbers:
            inputs[position] = number
        if not self._groups:
            return
        sizes = self._sizes(inputs)
        for shape, ones, dtype, device, positions in self._groups:
            wanted = shape(sizes)
            make = torch.ones if ones else torch.zeros
            tensor = make(wanted, dtype=dtype, device=device)
            empty = 0 in wanted
            inputs[positions[0]] = tensor
            for position in positions[1:]:
                inputs[position] = tensor if empty else make(wanted, dtype=dtype, device=device)

    def _sizes(self, inputs: Sequence[Any]) -> Sizes:
        """As :func:`sizes_of`; expressions are looked into only where a symbol stands nowhere
        alone.
        """
        sizes: dict[str, int] = {}
        for name, places in self._sources.items():
            for position, dim in places:
                value = inputs[position]
                if value is not None:
                    sizes[name] = value if dim is None else value.shape[dim]
                    break
            else:
                found = {
                    leaf.path: v
                    for leaf, v in zip(self._plan.inputs, inputs, strict=True)
                    if v is not None
                }
                return sizes_of(self._plan, found)
        return sizes


def _sources(plan: Plan) -> dict[str, list[tuple[int, int | None]]]:
    """Per symbol the inputs that show it alone: their positions, and the dimension (None for an
    int).
    """
    found: dict[str, list[tuple[int, int | None]]] = {symbol.name: [] for symbol in plan.symbols}
    for position, leaf in enumerate(plan.inputs):
        for dim, expression in enumerate(leaf.shape):
            if expression.is_symbol:
                found.setdefault(expression.symbols[0], []).append((position, dim))
        if leaf.value is not None and leaf.value.is_symbol:
            found.setdefault(leaf.value.symbols[0], []).append((position, None))
    return found


def _shape(leaf: LeafPlan) -> Shape:
    dims = [_size(expression) for expression in leaf.shape]
    if leaf.empty_dim is not None:
        dims[leaf.empty_dim] = _constant(0)
    return lambda sizes: tuple([size(sizes) for size in dims])


def _constant(size: int) -> Callable[[Sizes], int]:
    return lambda sizes: size


def _size(expression: Expression) -> Callable[[Sizes], int]:
    if expression.is_constant:
        return _constant(expression.evaluate({}))
    names = expression.symbols
    if expression.is_symbol:
        return lambda sizes: sizes[names[0]]
    symbols = sorted(expression.value.free_symbols, key=str)
    function = sympy.lambdify(symbols, expression.value, modules="math", dummify=True)
    return lambda sizes: int(function(*[sizes[symbol.name] for symbol in symbols]))
