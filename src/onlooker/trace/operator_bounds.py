"""Bounds that operators decided in a trace, or the model itself: ``table[:n]``, ``if n > 64: raise``.

A slice ends where the table ends, so it is the model that tells whether its result still fits: it is
run at the bound, and beyond it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from typing import Any

import sympy
import torch
from torch.fx import Node

from ..core.contract import Origin
from ..core.sizes.expression import Sizes
from ..lab.lab import SpentError
from ..lab.recorder import CountedOperators, ReachedError
from ..model_source.lines import place_of_node
from ..proofs.linear import Linear
from ..proofs.path_condition import Atom, key_of
from ..torch_internals.fake_tensors import UNKNOWN_VALUES
from ..torch_internals.operators import OpOverload
from .bounded_graph import WHY, BoundedGraph, bound_at, is_upper

__all__ = ["OperatorBounds"]

logger = logging.getLogger(__name__)
#: how many conditions of the model are tried on their other side
_MOST_ASKED = 4


class OperatorBounds:
    """The conditions of a trace beyond which the model refuses sizes."""

    def __init__(self, graph: BoundedGraph) -> None:
        self._graph = graph
        self._asks_left = _MOST_ASKED

    def find(self) -> dict[tuple[str, str], Atom]:
        """Returns the conditions of the trace that are bounds of the model, by their keys."""
        ends = self._ends_of_tensors()
        found: dict[tuple[str, str], Atom] = {}
        for key, atom in self._graph.condition.atoms.items():
            linear, by_model = self._graph.linear[key], atom.origin is Origin.MODEL
            is_candidate = is_upper(atom) and not atom.is_number
            if not is_candidate or atom.origin not in (Origin.OPERATOR, Origin.MODEL):
                continue
            if by_model or linear is None:
                if not self._asks_left or len(atom.condition.free_symbols) > 2 - by_model:
                    continue
                self._asks_left -= 1
            error = self._refusal_beyond(atom)
            if error is None:
                continue
            condition = atom.condition if linear is None else self._graph.condition_of(linear)
            if by_model:
                found[key] = bound_at(condition, atom.line, f"the model raises {error}")
            else:
                place = linear or key_of(condition)
                where, what = ends.get(place, ("", "an operator takes no more"))
                found[key] = bound_at(condition, where or atom.line, what)
        return found

    def _ends_of_tensors(self) -> dict[Any, tuple[str, str]]:
        """For each part of a tensor the condition that it ends inside of the tensor, and for each
        computed length that it is not negative: the line of the model, and what ends there.
        """
        found: dict[Any, tuple[str, str]] = {}
        for node in self._graph.program.nodes:
            for dim, end in self._ends_of(node):
                rows = self._graph.rows(node.args[0], dim)
                if rows is None or end is None:
                    continue
                condition = sympy.LessThan(end, rows, evaluate=False)
                place = Linear.of(condition) or key_of(condition)
                found.setdefault(
                    place, (place_of_node(node), self._graph.name_of(node.args[0], dim))
                )
            for size in _sizes_in(node):
                expression = self._graph.program.in_plan(size)
                linear = None if expression is None else Linear.of(sympy.Le(0, expression))
                if linear is not None:
                    found.setdefault(linear, (place_of_node(node), "no length is negative"))
        return found

    def _ends_of(self, node: Node) -> Iterator[tuple[int, Any]]:
        """The dimension that a node takes a part of, and the places up to which it needs rows."""
        if not isinstance(node.target, OpOverload):
            return
        name = node.target._opname
        args: list[Any] = [*node.args, None, None, None]
        if name == "slice":
            dim = args[1] or 0
            yield from (
                (dim, self._graph.program.in_plan(end)) for end in args[2:4] if end is not None
            )
        elif name == "narrow":
            start, length = map(self._graph.program.in_plan, args[2:4])
            yield args[1], None if start is None or length is None else start + length
        elif name == "select":
            index = self._graph.program.in_plan(args[2])
            yield args[1], None if index is None else index + 1

    def _refusal_beyond(self, atom: Atom) -> str | None:
        """Returns the error that the model raises for sizes beyond a condition of the trace; None
        where it takes them, or does not take those at the bound either.

        Operators do the same for all sizes beyond. Where the model decides by itself it goes another
        way there, which may lead on: it has to refuse larger sizes too, with values as well.
        """
        by_model = atom.origin is Origin.MODEL
        for name in sorted(symbol.name for symbol in atom.condition.free_symbols):
            pair = self._graph.both_sides(atom.constraint().holds, name, but=atom.key)
            if pair is None:
                continue
            inside, beyond = pair
            run = CountedOperators()
            error = self._refused(beyond, within=run)
            # at the bound the model has to come as far: what follows says nothing of this bound
            as_far = CountedOperators(run.count)
            if error is None or self._refused(inside, within=as_far) is not None:
                return None
            further = [{**beyond, name: factor * beyond[name]} for factor in (2, 5)]
            if by_model and not all(map(self._refused, further)):
                return None
            return error if not by_model or self._is_raised(error, beyond) else None
        return None

    def _is_raised(self, error: str, sizes: Sizes) -> bool:
        """True where the model refuses tensors with values as well. On other devices than the
        processor an index beyond its table may end the process: there the error has to be one that
        operators do not raise.
        """
        if self._graph.is_on_processor:
            return self._refused(sizes, with_values=True) is not None
        return error not in ("RuntimeError", "IndexError")

    def _refused(
        self, sizes: Sizes, *, within: CountedOperators | None = None, with_values: bool = False
    ) -> str | None:
        """The class of the error that the model raises for tensors of these sizes; None where it
        takes them, or where that is not known. By default the tensors have no values.
        """
        run = partial(self._graph.lab.run, memo=True) if with_values else self._graph.lab.run_fake
        if within is not None:
            run = partial(self._graph.lab.run_fake_within, within=within)
        try:
            run(self._graph.calls.arguments(sizes), why=WHY)
        except (SpentError, ReachedError, *UNKNOWN_VALUES):
            return None
        except Exception as error:
            logger.debug("the model refuses %s: %s", sizes, error)
            return type(error).__name__
        return None


def _sizes_in(node: Node) -> Iterator[Node]:
    """The sizes that an operator is given."""
    if isinstance(node.target, OpOverload):
        sizes = (torch.SymInt,)
        yield from (one for one in node.all_input_nodes if isinstance(one.meta.get("val"), sizes))
