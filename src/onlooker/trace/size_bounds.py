"""Sizes that become illegal: the rows of a table run out, or a shape fits no longer.

A model with 128 rows of positions takes 128 tokens. Torch records no decision about that, since an
index has values, and values are not known in a trace. But these values are made of sizes alone, so
that they can be computed for any sizes (:mod:`onlooker.proofs.size_program`). What remains of ``embedding(table,
arange(past, past + n))`` is the number of rows that are left, ``128 - past - n``. It is evaluated
at a few sizes, found to be linear, and the bound ``past + n <= 128`` is tried: at 128 positions the
index is legal, and at 129 it is not. ``arange(n).clamp(max=127)`` looks the same at small sizes, and
is legal at 129.

``table[:n]`` and ``table.narrow(0, 0, n)`` are bounds that torch does record, as decisions of its
operators. A slice ends where the table ends, so it is the model that tells whether its result still
fits: it is run at the bound, and beyond it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from ..core.contract import Origin
from ..lab.lab import Lab
from ..materialise.arguments import Calls
from ..proofs.linear import Linear, limits_in_plan
from ..proofs.path_condition import Atom, PathCondition
from .bounded_graph import BoundedGraph
from .graph import Graph
from .index_bounds import IndexBounds
from .operator_bounds import OperatorBounds

__all__ = ["find_bounds"]


def find_bounds(
    graph: Graph, condition: PathCondition, calls: Calls, lab: Lab
) -> tuple[PathCondition, tuple[Atom, ...]]:
    """Returns the path condition of a trace without what are bounds of the model, and these bounds.

    Sizes beyond a bound that satisfy the path condition are refused by the model itself.
    """
    bounded = BoundedGraph(graph, condition, calls, lab)
    of_operators = OperatorBounds(bounded).find()
    found = _reduced(bounded, of_operators, IndexBounds(bounded).find())
    gone = [atom for atom in condition.atoms.values() if atom.key in of_operators]
    gone += _implied_by(bounded, found)
    return condition.without(gone), tuple(found)


def _reduced(
    graph: BoundedGraph,
    of_operators: Mapping[tuple[str, str], Atom],
    of_indices: Iterable[Atom],
) -> list[Atom]:
    """Returns the bounds without those that follow from the plan, from the path, or from other bounds."""
    limits = limits_in_plan(graph.plan)
    bounds = {bound.key: bound for bound in (*of_operators.values(), *of_indices)}
    linear = {key: Linear.of(bound.condition) for key, bound in bounds.items()}
    path = [
        known
        for key, known in graph.linear.items()
        if known is not None and key not in of_operators
    ]
    kept: list[Atom] = []
    for key, bound in bounds.items():
        own = linear[key]
        others = [other for other in linear.values() if other is not None and other != own]
        if own is None or not own.follows_from([*path, *others], limits):
            kept.append(bound)
    return kept


def _implied_by(graph: BoundedGraph, bounds: Sequence[Atom]) -> Iterator[Atom]:
    """Yields the conditions of operators that follow from bounds."""
    limits = limits_in_plan(graph.plan)
    of_bounds = [Linear.of(bound.condition) for bound in bounds]
    facts = [linear for linear in of_bounds if linear is not None]
    for key, linear in graph.linear.items():
        atom = graph.condition.atoms[key]
        is_candidate = atom.origin is Origin.OPERATOR and not atom.is_number
        if linear is not None and is_candidate and linear.follows_from(facts, limits):
            yield atom
