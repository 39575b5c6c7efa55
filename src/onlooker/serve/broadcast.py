"""Tensors of a call that are of size 1 where a graph broadcasts, expanded to the sizes that it takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..core.plan import Plan

__all__ = ["Expansion"]


class Expansion:
    """Expands inputs of one plan. False where the plan has no axis along which it may."""

    def __init__(self, plan: Plan) -> None:
        positions = {leaf.path: position for position, leaf in enumerate(plan.inputs)}
        #: the inputs that may be expanded, with the symbol of each such dimension
        self._inputs = [
            (position, {dim: str(leaf.shape[dim]) for dim in leaf.broadcast})
            for position, leaf in enumerate(plan.inputs)
            if leaf.broadcast
        ]
        names = {name for _, dims in self._inputs for name in dims.values()}
        #: where the size of each symbol stands
        self._places = {
            name: [(positions[axis.path], axis.dim) for axis in plan.axes_of(name)]
            for name in names
        }

    def __bool__(self) -> bool:
        return bool(self._inputs)

    def of(self, inputs: Sequence[Any]) -> list[Any] | None:
        """The inputs, each of the sizes that other inputs have; None where all are so already."""
        sizes: dict[str, int] = {}
        for name, places in self._places.items():
            given = {inputs[p] if dim is None else inputs[p].shape[dim] for p, dim in places}
            if len(given) == 2 and 1 in given:
                (sizes[name],) = given - {1}
        expanded = list(inputs)
        for position, dims in self._inputs:
            shape = list(inputs[position].shape)
            for dim, name in dims.items():
                if shape[dim] == 1 and name in sizes:
                    shape[dim] = sizes[name]
            if shape != list(inputs[position].shape):
                expanded[position] = inputs[position].expand(shape)
        return expanded if sizes else None
