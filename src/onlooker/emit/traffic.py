"""A graph with its traffic: which sizes it takes, and what a call of them costs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ..core.contents import ProgramContents
from ..core.contract import Contract
from ..core.plan import LeafPlan, Plan, symbol_names
from ..core.profile import GraphProfile, Profile, profile_of_rows
from ..core.sizes.expression import Sizes
from ..core.spec import TensorSpec
from ..infer.sizes import are_in_range, is_possible

__all__ = ["Served", "served_graphs"]

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
        return symbol_names(self.plan)

    def sizes(self, row: tuple[int, ...]) -> Sizes:
        """Sizes by the name of the symbol."""
        return dict(zip(self.names, row, strict=True))

    def takes(self, row: tuple[int, ...]) -> bool:
        """True where the graph takes a call of these sizes: ranges, steps, no negative axis, and the
        contract.
        """
        sizes = self.sizes(row)
        return (
            are_in_range(self.plan, sizes)
            and is_possible(self.plan, sizes)
            and self.contract.holds(sizes)
        )

    def shape(self, leaf: LeafPlan, row: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of one input; of an int its value."""
        sizes = self.sizes(row)
        return tuple(expression.evaluate(sizes) for expression in leaf.sizes)

    def shapes(self, row: tuple[int, ...]) -> list[tuple[int, ...]]:
        """The shape of every input."""
        return [self.shape(leaf, row) for leaf in self.plan.inputs]

    def work(self, row: tuple[int, ...]) -> int:
        """The elements of all inputs: what a call of these sizes costs, as far as sizes tell."""
        leaves = zip(self.plan.inputs, self.shapes(row), strict=True)
        return max(1, sum(math.prod(shape) for leaf, shape in leaves if leaf.is_tensor))


def served_graphs(program: ProgramContents[Any], traffic: Profile) -> list[Served]:
    """The graphs of a program, each with its traffic and with the names that its files have."""
    outputs = {call.index: call.outputs.leaves for call in program.recording.calls}
    found = []
    for graph in program.graphs:
        leaves = next((outputs[n] for n in graph.plan.calls if n in outputs), ())
        specs = [leaf for leaf in leaves if isinstance(leaf, TensorSpec)]
        names = graph.outputs.names if len(graph.outputs.names) == len(specs) else ()
        pairs = zip(names, specs, strict=False)
        known = tuple((name, spec.dtype, len(spec.shape)) for name, spec in pairs)
        own = traffic.graph(graph.name) or profile_of_rows(graph.name, ())
        found.append(Served(graph.plan, graph.contract, own, graph.labels, known))
    return found
