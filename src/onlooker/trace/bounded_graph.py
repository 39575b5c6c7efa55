"""A traced graph and the sizes on both sides of a bound, on the path of the trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy
from torch.fx import Node

from ..core.contract import Origin
from ..core.sizes.expression import Sizes
from ..infer.sizes import is_possible
from ..lab.lab import Lab
from ..materialise.arguments import Calls
from ..proofs.linear import Linear
from ..proofs.path_condition import Atom, PathCondition, key_of, symbol_of
from ..proofs.size_program import SizeProgram
from .graph import Graph

__all__ = ["GREATEST", "WHY", "BoundedGraph", "bound_at", "is_upper"]

#: sizes are looked for up to this one
GREATEST = 2**20
#: what runs at a bound, and beyond it, are made for
WHY = "sizes at a bound of the model"
#: how many multiples of a step beyond a bound are looked at for sizes on the path of the trace
_MOST_STEPS = 64
#: conditions that some size may be too large for
_UPPER = (
    sympy.LessThan,
    sympy.StrictLessThan,
    sympy.GreaterThan,
    sympy.StrictGreaterThan,
)
#: operators that take a part of a tensor, and those that give it another form
_CUTS = frozenset({"slice", "narrow", "to", "_to_copy", "clone", "contiguous", "detach", "alias"})
_VIEWS = _CUTS | {"expand", "permute", "select", "squeeze", "transpose", "unsqueeze", "view"}


class BoundedGraph:
    """A graph with its path condition, the sizes of its example, and the part of it that sizes make."""

    def __init__(self, graph: Graph, condition: PathCondition, calls: Calls, lab: Lab) -> None:
        self.plan, self.condition = graph.plan, condition
        self.calls, self.lab = calls, lab
        self.base: Sizes = dict(graph.sizes)
        self.symbols = {symbol.name: symbol for symbol in graph.plan.symbols}
        self.program = SizeProgram(graph.artifact, graph.plan, graph.names)
        self.is_on_processor = all(leaf.device in ("", "cpu") for leaf in graph.plan.inputs)
        self.linear = {key: Linear.of(atom.condition) for key, atom in condition.atoms.items()}

    def both_sides(
        self, holds: Callable[[Sizes], bool], name: str, but: tuple[str, str] | None = None
    ) -> tuple[Sizes, Sizes] | None:
        """Returns the greatest size of one symbol at which a condition holds, and the next one beyond it on
        the path of the trace, beside the example's sizes of all others; None where there is none.

        With ``but``, the key of an atom, other operators may decide otherwise beyond it as well.
        """
        step = self.symbols[name].step

        def at(size: int) -> Sizes:
            return {**self.base, name: size}

        low = self.base[name]
        high = low + step
        while high <= GREATEST and holds(at(high)):
            low, high = high, high + 2 * (high - low)
        if high > GREATEST or not holds(at(low)):
            return None
        while high - low > step:
            middle = low + (high - low) // (2 * step) * step
            low, high = (middle, high) if holds(at(middle)) else (low, middle)
        beyond = (at(low + number * step) for number in range(1, _MOST_STEPS))
        first = next((sizes for sizes in beyond if self.is_on_path(sizes, but)), None)
        return (at(low), first) if first is not None and self.is_on_path(at(low)) else None

    def is_on_path(self, sizes: Sizes, but: tuple[str, str] | None = None) -> bool:
        """True for sizes at which the model goes the way of the trace."""

        def may_fail(key: tuple[str, str], atom: Atom) -> bool:
            if but is None or key == but:
                return key == but
            is_operator = atom.origin is Origin.OPERATOR and is_upper(atom)
            return is_operator and not atom.is_number

        return is_possible(self.plan, sizes) and all(
            may_fail(key, atom) or atom.constraint().holds(sizes)
            for key, atom in self.condition.atoms.items()
        )

    def condition_of(self, linear: Linear) -> Any:
        """Returns a linear condition on the symbols of the plan."""
        return linear.condition({name: symbol_of(symbol) for name, symbol in self.symbols.items()})

    def rows(self, table: Any, dim: int) -> Any:
        """Returns the size of a tensor in a dimension, as an expression of the plan."""
        value = table.meta.get("val") if isinstance(table, Node) else None
        shape = getattr(value, "shape", ())
        return self.program.in_plan(shape[dim]) if -len(shape) <= dim < len(shape) else None

    def name_of(self, table: Any, dim: int) -> str:
        """Returns the name of what ends: ``128 rows of position_embeddings.weight``."""
        if table is None:
            return "the classes of one_hot"
        whole, count = table, self.rows(table, dim)
        if count is None or not count.is_Integer:
            whole = self.program.source(table, _CUTS)
            count = self.rows(whole, dim)
        name = self.program.name(self.program.source(whole, _VIEWS)) or "a tensor"
        if dim == 0:
            return f"{count} rows of {name}"
        return f"{name}.shape[{dim}] is {count}"


def bound_at(condition: Any, line: str, what: str) -> Atom:
    """Returns a bound of the model, with its line and with what ends there."""
    return Atom(key_of(condition), condition, Origin.BOUND, line, reason=what)


def is_upper(atom: Atom) -> bool:
    """True for a condition that some size may be too large for."""
    return isinstance(atom.condition, _UPPER)
