"""A graph with its traffic: which sizes it takes, and what a call of them costs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..core.contract import Contract
from ..core.plan import LeafPlan, Plan
from ..core.profile import GraphProfile
from ..infer.sizes import is_possible

__all__ = ["Served"]

#: sizes that came together, in the order of the symbols of a plan, and the number of their calls
Row = tuple[tuple[int, ...], int]


@dataclass(frozen=True, slots=True)
class Served:
    """One graph and its traffic. ``inputs`` are the names of its inputs in the file, in the order
    of the plan; ``outputs`` the names of its outputs, each with dtype and number of dimensions.
    """

    plan: Plan
    contract: Contract
    traffic: GraphProfile
    inputs: tuple[str, ...]
    outputs: tuple[tuple[str, str, int], ...] = ()

    @property
    def rows(self) -> tuple[Row, ...]:
        """The sizes that the graph takes, among those of the traffic."""
        return tuple(row for row in self.traffic.rows if self.takes(row[0]))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the symbols."""
        return tuple(symbol.name for symbol in self.plan.symbols)

    def sizes(self, row: tuple[int, ...]) -> dict[str, int]:
        """Sizes by the name of the symbol."""
        return dict(zip(self.names, row, strict=True))

    def takes(self, row: tuple[int, ...]) -> bool:
        """True where the graph takes a call of these sizes: ranges, steps, no negative axis, and the
        contract.
        """
        sizes = self.sizes(row)
        in_range = all(symbol.takes(sizes[symbol.name]) for symbol in self.plan.symbols)
        return in_range and is_possible(self.plan, sizes) and self.contract.holds(sizes)

    def shape(self, leaf: LeafPlan, row: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of one input; of an int its value."""
        sizes = self.sizes(row)
        if leaf.value is not None:
            return (leaf.value.evaluate(sizes),)
        return tuple(expression.evaluate(sizes) for expression in leaf.shape)

    def shapes(self, row: tuple[int, ...]) -> list[tuple[int, ...]]:
        """The shape of every input."""
        return [self.shape(leaf, row) for leaf in self.plan.inputs]

    def work(self, row: tuple[int, ...]) -> int:
        """The elements of all inputs: what a call of these sizes costs, as far as sizes tell."""
        leaves = zip(self.plan.inputs, self.shapes(row), strict=True)
        return max(1, sum(math.prod(shape) for leaf, shape in leaves if leaf.is_tensor))
