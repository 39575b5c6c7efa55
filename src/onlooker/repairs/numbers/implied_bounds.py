"""Assertions of a program about a number of values, and what follows from the sizes that it is
equal to.

Where ``x[mask]`` has as many rows as another input, torch replaces their number ``u0`` by the size
``s0``, asserts that they are equal, and asserts the range that ``s0`` had in the trace: ``u0 >= 2``.
A graph that is proven for one row as well would refuse it. The equation stays, and the contract of
the graph says which sizes it takes.
"""

from __future__ import annotations

import operator

import torch
from torch.fx import Node

from ...torch_internals.sizes import free_unbacked_symbols
from ..repair import Repair

__all__ = ["IMPLIED_BOUNDS", "drop_implied_bounds", "implied_bounds"]

_ASSERTION = torch.ops.aten._assert_scalar.default
_BOUNDS = (operator.ge, operator.le)


def drop_implied_bounds(program: torch.export.ExportedProgram) -> None:
    """Takes out the bounds of numbers of values that the program asserts to be equal to sizes; what
    nothing uses then is left in the graph.
    """
    for node in implied_bounds(program.graph_module.graph):
        program.graph_module.graph.erase_node(node)


def implied_bounds(graph: torch.fx.Graph) -> list[Node]:
    """The assertions of a graph that say no more than the range that a size had in the trace.

    A program that is taken apart to other operators is traced anew, which writes them again.
    """
    asserted = {
        node: node.args[0]
        for node in graph.find_nodes(op="call_function", target=_ASSERTION)
        if isinstance(node.args[0], Node)
    }
    equal = {
        side
        for condition in asserted.values()
        if condition.target is operator.eq
        for side in condition.all_input_nodes
    }
    return [
        node
        for node, condition in asserted.items()
        if _is_bound_of_size(condition) and condition.args[0] in equal
    ]


def _is_bound_of_size(condition: Node) -> bool:
    """True for ``number >= 2`` where the number is made of sizes in the trace, and of no values."""
    if condition.target not in _BOUNDS or not isinstance(condition.args[1], int):
        return False
    known = condition.all_input_nodes[0].meta.get("val")
    return isinstance(known, torch.SymInt) and not free_unbacked_symbols(known)


IMPLIED_BOUNDS = Repair(
    "implied bounds",
    "A program that asserts ``u0 == s0`` also asserts the least size that the trace had, ``u0"
    " >= 2``, and refuses one row. The equation stays, the bound goes.",
    until="tests/repairs/test_greatest_sizes.py::test_a_watched_model_takes_other_numbers_of_features",
    always=True,
)
