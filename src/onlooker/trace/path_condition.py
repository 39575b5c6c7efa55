"""The path condition of a trace, in the symbols of its plan.

The decisions of a trace are conditions over symbols of torch. Each such symbol is the size of one input; the plan knows
that size as an expression of its own symbols. Put in, most conditions become trivial (``mask <= past + sequence``
where the plan knows ``mask == past + sequence``). The others are atoms: conditions under which the graph is what the
model does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import sympy
from sympy.core.relational import Relational
from torch.utils._sympy.functions import FloorDiv, Max, Min, PythonMod
from torch.utils._sympy.printers import PythonPrinter

from ..core.contract import Constraint, Origin
from ..core.errors import ExportError
from ..core.floor import Floor
from ..core.path import Path
from ..core.plan import Plan, Symbol
from .decisions import Decision
from .size_proofs import SizeProofs

__all__ = ["Atom", "PathCondition", "path_condition", "proofs_of"]

_SOURCE = re.compile(r"L\['(\w+)'\](?:\.size\(\)\[(\d+)\])?")
_UNBACKED = re.compile(r"(u|zuf|zf)\d+")


@dataclass(frozen=True, slots=True)
class Atom:
    """One condition of a path. Two atoms with the same ``key`` are the same condition."""

    key: tuple[str, str]
    condition: Any
    origin: Origin
    line: str

    @property
    def formula(self) -> str:
        """The condition as text."""
        return written(self.condition)

    def exceptions(self) -> list[str]:
        """The values of 0 and 1 that the condition excludes, as formulas: ``n // 4 == 1``."""
        condition = self.condition
        size, number = condition.lhs, condition.rhs
        if size.is_Integer:
            size, number = number, size
            condition = condition.reversed
        if not number.is_Integer:
            return [written(sympy.Not(condition))]
        excluded = [value for value in (1, 0) if condition.func(value, number) in (False, sympy.false)]
        return [written(sympy.Eq(size, value, evaluate=False)) for value in excluded]

    def constraint(self) -> Constraint:
        """The atom as a value without sympy."""
        return Constraint(self.formula, self.origin, self.line)


@dataclass(frozen=True, slots=True)
class PathCondition:
    """All atoms of one trace; ``small`` are the conditions of operators that only speak of sizes of 0 and 1.

    An operator decides about a size of 0 or 1 again whenever it runs, so those are no constraints, but sizes at which
    the graph is tried.
    """

    atoms: Mapping[tuple[str, str], Atom] = field(default_factory=dict)
    small: tuple[Atom, ...] = ()

    def constraints(self) -> tuple[Constraint, ...]:
        """The atoms as values without sympy, in the order of the trace."""
        return tuple(atom.constraint() for atom in self.atoms.values())


def path_condition(
    decisions: Iterable[Decision], plan: Plan, names: Mapping[Path, str], ranges: Mapping[str, tuple[int, int | None]]
) -> PathCondition:
    """The atoms of a trace of a plan.

    ``ranges`` are the least and the greatest value that the program has per expression of the plan: torch leaves out
    the guards that they answer.

    :raises ExportError: ``guard-not-known`` for a decision about a size that is no size of an input
    """
    translation = _Translation(plan, names)
    atoms: dict[tuple[str, str], Atom] = {}
    small: dict[tuple[str, str], Atom] = {}
    for decision in decisions:
        if any(_UNBACKED.fullmatch(symbol.name) for symbol in decision.symbols):
            continue  # a decision on a value: torch checks it when the program runs
        condition = translation.condition(decision)
        if translation.is_implied(condition):
            continue
        condition = translation.simplified(condition)
        origin = Origin.MODEL if decision.by_model else Origin.OPERATOR
        atom = Atom(key_of(condition), condition, origin, decision.line)
        if not decision.by_model and translation.is_small(condition):
            small.setdefault(atom.key, atom)
        elif atom.key not in atoms or atoms[atom.key].origin is Origin.OPERATOR:
            atoms[atom.key] = atom
    for condition in translation.of_ranges(ranges):
        atom = Atom(key_of(condition), condition, Origin.OPERATOR, "")
        if not translation.is_implied(condition) and not translation.is_small(condition):
            atoms.setdefault(atom.key, atom)
    return PathCondition(atoms, tuple(small.values()))


class _Translation:
    """Symbols of torch -> expressions of a plan."""

    def __init__(self, plan: Plan, names: Mapping[Path, str]) -> None:
        self._axes = {
            (names[leaf.path], axis.dim): expression.value for leaf in plan.inputs for axis, expression in leaf.axes
        }
        self._plan = plan
        self._lows = {symbol.name: symbol.low for symbol in plan.symbols}
        self._proofs, self._proofs_from_2 = proofs_of(plan), proofs_of(plan, least=2)
        self._implied: dict[Any, bool] = {}

    def condition(self, decision: Decision) -> Any:
        """What the decision says of the sizes, as it held in the trace."""
        values = {symbol: self._value(decision, symbol) for symbol in decision.symbols}
        sides = [_with_torch_floor(side.xreplace(values)) for side in decision.sides]
        if decision.relation is not None:
            condition = decision.relation(*sides)
        elif decision.is_number:
            return sympy.Eq(sides[0], decision.answer)
        else:
            condition = sides[0]
        return condition if bool(decision.answer) else sympy.Not(condition)

    def _value(self, decision: Decision, symbol: Any) -> Any:
        source = decision.sources.get(symbol, "")
        match = _SOURCE.fullmatch(source)
        axis = (match.group(1), int(match.group(2)) if match.group(2) else None) if match else None
        if axis not in self._axes:
            raise ExportError(
                f"The model decides by {symbol} ({source or 'of unknown source'}), which is no size of an input.",
                slug="guard-not-known",
                hint=f"The line of the model is {decision.line}." if decision.line else "",
            )
        return self._with_sign(self._axes[axis])

    def _with_sign(self, value: Any) -> Any:
        """The expression with symbols that may be negative where the plan allows that."""
        signed = {s: sympy.Symbol(s.name, integer=True) for s in value.free_symbols if self._lows.get(s.name, 0) < 0}
        return value.xreplace(signed) if signed else value

    def of_ranges(self, ranges: Mapping[str, tuple[int, int | None]]) -> Iterator[Any]:
        """The ranges of a program as conditions."""
        known = {str(e): e.value for leaf in self._plan.inputs for _, e in leaf.axes if e.symbols}
        for text, (low, high) in ranges.items():
            if text not in known:
                continue
            value = _with_torch_floor(self._with_sign(known[text]))
            yield value >= low
            if high is not None:
                yield value <= high

    def is_implied(self, condition: Any) -> bool:
        """True for a condition that holds for all sizes that the plan allows."""
        if condition not in self._implied:
            self._implied[condition] = self._proofs.always(condition)
        return self._implied[condition]

    def is_small(self, condition: Any) -> bool:
        """True for a condition that sizes of 0 and 1 alone can violate."""
        return self._proofs_from_2.always(condition) or self._is_about_0_or_1(condition)

    def _is_about_0_or_1(self, condition: Any) -> bool:
        """True for ``size != 1``, ``size > 0`` and the like, where the size is never negative."""
        if isinstance(condition, (sympy.StrictLessThan, sympy.LessThan)):
            condition = condition.reversed
        if not isinstance(condition, (sympy.Ne, sympy.StrictGreaterThan, sympy.GreaterThan)):
            return False
        size, number = condition.lhs, condition.rhs
        if not number.is_Integer and isinstance(condition, sympy.Ne):
            size, number = number, size
        most = 2 if isinstance(condition, sympy.GreaterThan) else 1
        return bool(number.is_Integer and 0 <= number <= most) and self.is_implied(size >= 0)

    def simplified(self, condition: Any) -> Any:
        """The condition without divisions and maxima that the sizes of the plan decide."""
        if not isinstance(condition, Relational):
            return condition
        return condition.func(*(self._proofs.simplified(side) for side in condition.args))


def proofs_of(plan: Plan, facts: Iterable[Any] = (), least: int | None = None) -> SizeProofs:
    """Proofs about the sizes of a plan, or about those of them that are ``least`` or more."""
    steps = [sympy.Eq(PythonMod(_symbol_of(symbol), symbol.step), 0) for symbol in plan.symbols if symbol.step > 1]
    lows = {s.name: s.low if least is None else max(s.low, least) for s in plan.symbols}
    return SizeProofs(lows, [*facts, *steps])


def _symbol_of(symbol: Symbol) -> Any:
    """The symbol as expressions of the plan have it; one that may be negative stands for itself in a trace alone."""
    if symbol.low < 0:
        return sympy.Symbol(symbol.name, integer=True)
    return sympy.Symbol(symbol.name, integer=True, nonnegative=True)


def _with_torch_floor(value: Any) -> Any:
    """The expression with the floor division of torch, and the minimum of sympy, which knows more than torch's."""
    for own, other in ((Floor, FloorDiv), (Min, sympy.Min), (Max, sympy.Max)):
        if value.has(own):
            value = value.replace(own, other)
    return value


def key_of(condition: Any) -> tuple[str, str]:
    """A form in which equal conditions of integers are equal: ``a > b`` and ``b < a`` and ``a - b >= 1``."""
    if not isinstance(condition, Relational):
        return "is", str(condition)
    left, right = condition.lhs, condition.rhs
    if isinstance(condition, (sympy.Eq, sympy.Ne)):
        difference = sympy.expand(left - right)
        opposite = sympy.expand(-difference)
        return condition.rel_op, min(str(difference), str(opposite))
    if isinstance(condition, (sympy.StrictLessThan, sympy.LessThan)):
        left, right = right, left
    strict = isinstance(condition, (sympy.StrictGreaterThan, sympy.StrictLessThan))
    return ">=", str(sympy.expand(left - right - (1 if strict else 0)))


def written(condition: Any) -> str:
    """A condition as Python.

    >>> n = sympy.Symbol("n", integer=True, nonnegative=True)
    >>> written(sympy.And(n > 2, sympy.Ne(FloorDiv(n, 2), 4)))
    'n // 2 != 4 and n > 2'
    """
    if isinstance(condition, Relational):
        return f"{_printed(condition.lhs)} {condition.rel_op} {_printed(condition.rhs)}"
    if isinstance(condition, (sympy.And, sympy.Or)):
        word = " and " if isinstance(condition, sympy.And) else " or "
        parts = sorted(condition.args, key=str)
        return word.join(f"({written(p)})" if isinstance(p, (sympy.And, sympy.Or)) else written(p) for p in parts)
    if isinstance(condition, sympy.Not):
        return f"not ({written(condition.args[0])})"
    return (
        "True" if condition in (True, sympy.true) else "False" if condition in (False, sympy.false) else str(condition)
    )


def _printed(value: Any) -> str:
    return str(PythonPrinter().doprint(value)).replace("torch.sym_float(", "float(")
