"""Assertions of a program about a number of values, and what follows from the sizes that it is
equal to.

Where ``x[mask]`` has as many rows as another input, torch replaces their number ``u0`` by the size
``s0``, asserts that they are equal, and asserts the range that ``s0`` had in the trace: ``u0 >= 2``.
A graph that is proven for one row as well would refuse it. The equation stays, and the contract of
the graph says which sizes it takes. That a part of a tensor begins at 0 or later in its memory says nothing either.

Of a length that values decide torch never learns that it is below 2. Where a model decides by ``u0 > 0``,
and the example has no row, torch takes the assertion ``u0 <= 0`` for one that the range says already, which is
``u0 <= 2``: such a program answers calls with one row and with two
(``upstream/torch_bounds_below_two.py``).
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import sympy
import torch
from torch.fx import Node

from ...patches.swap import swapped
from ...torch_internals.sizes import ShapeEnv, free_unbacked_symbols
from ..repair import Repair

__all__ = ["BOUNDS_BELOW_TWO", "IMPLIED_BOUNDS", "drop_implied_bounds", "implied_bounds"]

_ASSERTION = torch.ops.aten._assert_scalar.default
_BOUNDS = (operator.ge, operator.le)
#: the least upper bound of a length that torch keeps
_LEAST_KNOWN = 2


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
        if (_is_bound_of_size(condition) and condition.args[0] in equal)
        or _is_of_an_offset(condition)
    ]


@contextlib.contextmanager
def _bounds_below_two_are_asserted() -> Iterator[None]:
    """Inside the block an upper bound below 2 is asserted as ``u0 < 1``, which torch takes for none that a
    range says.
    """
    defer = ShapeEnv.guard_or_defer_runtime_assert

    @functools.wraps(defer)
    def deferred(self: ShapeEnv, condition: Any, *args: Any, **kwargs: Any) -> Any:
        result = defer(self, condition, *args, **kwargs)
        for symbol in getattr(condition, "free_symbols", ()):
            for asserted in self.deferred_runtime_asserts.get(symbol, ())[-1:]:
                bound = _strict(asserted.expr)
                if bound is not None:
                    self.deferred_runtime_asserts[symbol][-1] = replace(asserted, expr=bound)
        return result

    with swapped(ShapeEnv, "guard_or_defer_runtime_assert", deferred):
        yield


def _strict(condition: Any) -> Any:
    """``u0 <= 0`` as ``u0 < 1``; None for anything but a bound below 2 of one symbol."""
    if isinstance(condition, sympy.Ge):
        condition = condition.reversed
    if not isinstance(condition, sympy.Le) or not condition.lhs.is_Symbol:
        return None
    bound = condition.rhs
    small = bound.is_Integer and bound < _LEAST_KNOWN
    return sympy.Lt(condition.lhs, bound + 1, evaluate=False) if small else None


def _is_bound_of_size(condition: Node) -> bool:
    """True for ``number >= 2`` where the number is made of sizes in the trace, and of no values."""
    if condition.target not in _BOUNDS or not isinstance(condition.args[1], int):
        return False
    known = condition.all_input_nodes[0].meta.get("val")
    return isinstance(known, torch.SymInt) and not free_unbacked_symbols(known)


def _is_of_an_offset(condition: Node) -> bool:
    """True for ``offset >= 0`` of where a tensor begins in its memory, which converters do not know."""
    offset, *bound = condition.args
    is_low = condition.target is operator.ge and bound == [0]
    return is_low and getattr(offset, "target", None) is torch.ops.aten.sym_storage_offset.default


IMPLIED_BOUNDS = Repair(
    "implied bounds",
    "A program that asserts ``u0 == s0`` also asserts the least size that the trace had, ``u0"
    " >= 2``, and refuses one row. The equation stays, the bound goes.",
    until="tests/repairs/test_greatest_sizes.py::test_a_watched_model_takes_other_numbers_of_features",
    always=True,
)
BOUNDS_BELOW_TWO = Repair(
    "bounds below two",
    "Of a length that values decide torch asserts no upper bound below 2: where the example has no row, and the"
    " model asks ``n > 0``, the program takes calls with one row and with two.",
    until="upstream/torch_bounds_below_two.py",
    link="https://github.com/pytorch/pytorch/blob/v2.13.0/torch/fx/passes/runtime_assert.py",
    always=True,
    block=lambda _: _bounds_below_two_are_asserted(),
)
