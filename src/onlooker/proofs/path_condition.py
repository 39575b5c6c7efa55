"""The path condition of a trace, in the symbols of its plan.

The decisions of a trace are conditions over symbols of torch. Each such symbol is the size of one
input; the plan knows that size as an expression of its own symbols. Put in, most conditions become
trivial (``mask <= past + sequence`` where the plan knows ``mask == past + sequence``). The others
are atoms: conditions under which the graph is what the model does.

An example: the plan has ``ids`` of shape (batch, sequence), a cache with ``past`` tokens, and ``mask`` of shape
(batch, past + sequence). The trace decided three times about symbols of torch::

    torch             size of an input     decision     in symbols of the plan          what it is
    s1                ids.shape[1]         s3 >= s1     past + sequence >= sequence     trivial
    s3                mask.shape[1]        s3 > 64      past + sequence > 64            an atom
    s2                cache.shape[2]       s2 == 0      past == 0, answered with no     the atom past != 0
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

import sympy
import torch
from sympy.core.relational import Relational

from ..core.contract import Constraint, Origin
from ..core.errors import ExportError, UsageError
from ..core.path import Path
from ..core.plan import Plan, Symbol
from ..core.sizes.floor import Floor
from ..core.sizes.formula import read_formula
from ..torch_internals.sizes import FloorDiv, Max, Min, PythonMod, PythonPrinter
from .decisions import Decision, sources_of
from .linear import Linear, limits_in_plan
from .size_proofs import SizeProofs, is_fact, is_number

__all__ = [
    "Atom",
    "PathCondition",
    "in_least_terms",
    "in_sizes",
    "path_condition",
    "proofs_of",
    "symbol_of",
    "value_at",
    "written",
]

_SOURCE = re.compile(r"L\['(\w+)'\](?:\.size\(\)\[(\d+)\])?")
_UNBACKED = re.compile(r"(u|zuf|zf)\d+")


@dataclass(frozen=True)
class Atom:
    """One condition of a path. Two atoms with the same ``key`` are the same condition.

    ``is_number`` is True where a size became a plain number: its other side is as many graphs as
    there are numbers. ``reason`` says what ends at a bound of the model.
    """

    key: tuple[str, str]
    condition: Any
    origin: Origin
    line: str
    is_number: bool = False
    reason: str = ""

    @cached_property
    def formula(self) -> str:
        """The condition as text."""
        return written(self.condition)

    def exceptions(self) -> list[Any]:
        """Returns the sizes that the condition excludes, 0 and 1 each by itself: ``n // 4 == 1``."""
        if not isinstance(self.condition, Relational):
            return [sympy.Not(self.condition)]
        condition = self.condition.reversed if self.condition.lhs.is_Integer else self.condition
        size, number = condition.lhs, condition.rhs
        if not number.is_Integer or int(number) > 2:
            return [sympy.Not(condition)]
        excluded = [
            value for value in (1, 0) if condition.func(value, number) in (False, sympy.false)
        ]
        return [sympy.Eq(size, value, evaluate=False) for value in excluded]

    def constraint(self) -> Constraint:
        """The atom as a value without sympy."""
        return Constraint(self.formula, self.origin, self.line, self.reason)


@dataclass(frozen=True, slots=True)
class PathCondition:
    """All atoms of one trace; ``tried`` are conditions of operators about sizes of 0 and 1, or
    sizes that differ. ``reads`` are the sizes that the Python of the model read, in their order.

    An operator decides about these again whenever it runs, so those are no constraints, but sizes
    at which the graph is tried.
    """

    atoms: Mapping[tuple[str, str], Atom] = field(default_factory=dict)
    tried: tuple[Atom, ...] = ()
    reads: tuple[tuple[Any, ...], ...] = ()

    def without(self, atoms: Iterable[Atom]) -> PathCondition:
        """Returns the path condition without some of its atoms."""
        gone = {atom.key for atom in atoms}
        kept = {key: atom for key, atom in self.atoms.items() if atom.key not in gone}
        return replace(self, atoms=kept)

    def constraints(self) -> tuple[Constraint, ...]:
        """The atoms as values without sympy, in the order of the trace."""
        return tuple(atom.constraint() for atom in self.atoms.values())


def path_condition(
    decisions: Iterable[Decision],
    plan: Plan,
    names: Mapping[Path, str],
    ranges: Mapping[str, tuple[int, int | None]],
    reads: Iterable[Sequence[Any]],
) -> PathCondition:
    """The atoms of a trace of a plan.

    ``reads`` are the sizes that the Python of the model read from tensors.

    ``ranges`` are the least and the greatest value that the program has per expression of the plan:
    torch leaves out the guards that they answer.

    :raises ExportError: ``guard-not-known`` for a decision about a size that is no size of an input, and for one by a
        power of a size
    """
    translation = _Translation(plan, names)
    found: list[tuple[Any, Decision | None]] = []
    for decision in decisions:
        if not any(_UNBACKED.fullmatch(symbol.name) for symbol in decision.symbols):
            found.append((translation.condition(decision), decision))
    # of a decision on a value nothing is kept: torch checks it when the program runs
    linear = [known for known in (Linear.of(condition) for condition, _ in found) if known]
    found += [
        (condition, None)
        for condition in translation.of_ranges(ranges)
        if not _follows_from_2(condition, linear, plan)
    ]
    translation.learn(
        c for c, source in found if translation.stays(c, source is not None and source.by_model)
    )
    atoms: dict[tuple[str, str], Atom] = {}
    tried: dict[tuple[str, str], Atom] = {}
    for raw, source in found:
        if translation.is_implied(raw):
            continue
        condition = translation.simplified(raw)
        if condition == sympy.true:  # the other conditions imply it
            continue
        by_model = source is not None and source.by_model
        origin = Origin.MODEL if by_model else Origin.OPERATOR
        is_number = source is not None and source.is_number
        atom = Atom(
            key_of(condition),
            condition,
            origin,
            source.line if source is not None else "",
            is_number,
        )
        if not by_model and raw not in translation.learnt and translation.is_tried(condition):
            if source is not None:  # a range that starts at torch's 2 asks for nothing
                tried.setdefault(atom.key, atom)
        elif atom.key not in atoms or _tells_more(atom, atoms[atom.key]):
            _check_readable(condition, atom.line)
            atoms[atom.key] = atom
    return PathCondition(atoms, tuple(tried.values()), tuple(map(translation.numbers, reads)))


def _check_readable(condition: Any, line: str) -> None:
    """Passes for a condition that a contract can ask of a call.

    :raises ExportError: ``guard-not-known`` for ``2**n < 100``, whose power may have any number of digits
    """
    names = [symbol.name for symbol in condition.free_symbols]
    try:
        read_formula(written(condition), names)
    except UsageError as error:
        raise ExportError(
            f"The model decides by {written(condition)}{f', at {line}' if line else ''}, which no contract can ask of"
            " a call.",
            slug="guard-not-known",
            hint="Compare the sizes themselves, without a power of one.",
        ) from error


def _follows_from_2(condition: Any, decisions: Sequence[Linear], plan: Plan) -> bool:
    """True for a range that torch concludes from a decision, since it takes each size for 2 or more:
    ``n <= 126`` from ``past + n <= 128``.
    """
    linear = Linear.of(condition)
    limits = limits_in_plan(plan, least=2)
    return linear is not None and linear.is_upper and linear.follows_from(decisions, limits)


def _tells_more(atom: Atom, known: Atom) -> bool:
    """A decision of the model tells more than one of an operator, and of these one between two
    sides.
    """
    return (atom.origin is Origin.MODEL, not atom.is_number) > (
        known.origin is Origin.MODEL,
        not known.is_number,
    )


def in_sizes(decision: Decision, axes: Mapping[tuple[str, int | None], Any]) -> Any:
    """Returns the condition on sizes that a decision is, as it held in the trace; ``axes`` are the
    sizes of the inputs by name.

    :raises ExportError: ``guard-not-known`` for a decision about a size that is no size of an input
    """
    values = {symbol: _size_of(decision, symbol, axes) for symbol in decision.symbols}
    sides = [_with_torch_floor(side.xreplace(values)) for side in decision.sides]
    if decision.relation is not None:
        condition = decision.relation(*sides)
    elif decision.is_number:
        return sympy.Eq(sides[0], decision.answer)
    else:
        condition = sides[0]
    return condition if bool(decision.answer) else sympy.Not(condition)


def _size_of(decision: Decision, symbol: Any, axes: Mapping[tuple[str, int | None], Any]) -> Any:
    source = decision.sources.get(symbol, "")
    size = _of_source(source, axes)
    if size is None:
        raise ExportError(
            f"The model decides by {symbol} ({source or 'of unknown source'}), which is no size of"
            " an input.",
            slug="guard-not-known",
            hint=f"The line of the model is {decision.line}." if decision.line else "",
        )
    return size


def _of_source(source: str, axes: Mapping[tuple[str, int | None], Any]) -> Any:
    """The size at a source of torch; None where that is no size of an input."""
    match = _SOURCE.fullmatch(source)
    if match is None:
        return None
    name, dim = match.groups()
    return axes.get((name, int(dim) if dim else None))


class _Translation:
    """Symbols of torch -> expressions of a plan."""

    def __init__(self, plan: Plan, names: Mapping[Path, str]) -> None:
        self._plan = plan
        self._lows = {symbol.name: symbol.low for symbol in plan.symbols}
        self._axes = {
            (names[leaf.path], axis.dim): self._with_sign(expression.value)
            for leaf in plan.inputs
            for axis, expression in leaf.axes
        }
        self._of_plan = self._proofs = proofs_of(plan)
        self._proofs_from_2 = proofs_of(plan, least=2)
        self._implied: dict[Any, bool] = {}
        self.learnt: dict[Any, None] = {}

    def condition(self, decision: Decision) -> Any:
        """Returns the condition on the sizes that the decision is, as it held in the trace."""
        return in_least_terms(in_sizes(decision, self._axes))

    def numbers(self, read: Iterable[Any]) -> tuple[Any, ...]:
        """Sizes that were read, as expressions; None for one that hangs on values."""
        return tuple(map(self._number, read))

    def _number(self, size: Any) -> Any:
        if not isinstance(size, torch.SymInt):
            return sympy.Integer(size)
        expression = size.node.expr
        sources = sources_of(size.node.shape_env, expression.free_symbols)
        values = {
            symbol: _of_source(sources.get(symbol, ""), self._axes)
            for symbol in expression.free_symbols
        }
        if None in values.values():
            return None
        return _with_torch_floor(expression.xreplace(values))

    def _with_sign(self, value: Any) -> Any:
        """The expression with symbols that may be negative where the plan allows that."""
        signed = {
            s: sympy.Symbol(s.name, integer=True)
            for s in value.free_symbols
            if self._lows.get(s.name, 0) < 0
        }
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

    def stays(self, condition: Any, by_model: bool) -> bool:
        """True for a condition that is an atom for certain, whatever the others are."""
        return (by_model or not self.is_tried(condition)) and not self._of_plan.always(condition)

    def learn(self, conditions: Iterable[Any]) -> None:
        """Takes conditions of a trace for granted in proofs about the others: each stays a
        condition itself.
        """
        facts = self._without_repetitions(
            dict.fromkeys(condition for condition in conditions if is_fact(condition))
        )
        self.learnt = dict.fromkeys(facts)
        self._proofs, self._proofs_from_2 = (
            proofs_of(self._plan, facts),
            proofs_of(self._plan, facts, least=2),
        )

    def _without_repetitions(self, facts: Iterable[Any]) -> list[Any]:
        """The facts without those that follow from sizes that are numbers, the simplest of which
        come first.
        """
        numbers: list[Any] = []
        proofs, others = self._of_plan, []
        for fact in sorted(facts, key=sympy.count_ops):
            if proofs.always(fact):
                continue
            if is_number(fact):
                numbers.append(fact)
                proofs = proofs_of(self._plan, numbers)
            else:
                others.append(fact)
        return [*numbers, *(fact for fact in others if not numbers or not proofs.always(fact))]

    def is_implied(self, condition: Any) -> bool:
        """True for a condition that holds for all sizes that the plan and what was learnt allow."""
        if condition not in self._implied:
            proofs = self._of_plan if condition in self.learnt else self._proofs
            self._implied[condition] = proofs.always(condition)
        return self._implied[condition]

    def is_tried(self, condition: Any) -> bool:
        """True for a condition of an operator whose exceptions can be tried: sizes of 0 and 1, and
        sizes that differ.

        The operator decides again whenever it runs.
        """
        if isinstance(condition, sympy.Ne) or self._proofs_from_2.always(condition):
            return True
        if isinstance(condition, (sympy.StrictLessThan, sympy.LessThan)):
            condition = condition.reversed
        if (
            not isinstance(condition, (sympy.StrictGreaterThan, sympy.GreaterThan))
            or not condition.rhs.is_Integer
        ):
            return False
        most = 2 if isinstance(condition, sympy.GreaterThan) else 1
        return bool(0 <= condition.rhs <= most) and self._proofs.always(condition.lhs >= 0)

    def simplified(self, condition: Any) -> Any:
        """The condition without divisions and maxima that the sizes of the plan decide."""
        if not isinstance(condition, Relational):
            return condition
        proofs = self._proofs
        if condition in self.learnt and condition.has(sympy.Min, sympy.Max):
            proofs = self._proofs_before(condition)
        for divisor in _divisors_in(condition):
            if proofs.always(divisor >= 0) and self._holds_where(divisor >= 1, condition):
                return in_least_terms(divisor >= 1)
        sides = (proofs.simplified(side) for side in condition.args)
        return self._of_whole_steps(in_least_terms(condition.func(*sides)))

    def _holds_where(self, fact: Any, condition: Any) -> bool:
        """True where a condition asks for a fact alone: the pieces of ``cat([x, x]).chunk(2)`` are two where there is
        a row.
        """
        return proofs_of(self._plan, [fact]).always(condition)

    def _proofs_before(self, fact: Any) -> SizeProofs:
        """Proofs from the facts that were learnt before this one: ``min(6, n) == 6`` is no number
        because of itself, and of two facts that follow from each other one stays.
        """
        before = itertools.takewhile(lambda other: other != fact, self.learnt)
        return proofs_of(self._plan, before)

    def _of_whole_steps(self, condition: Any) -> Any:
        """``n // 2 % 2 == 0`` as ``n % 4 == 0`` where ``n`` is even: one condition on a side that is
        halved by several layers.
        """
        if not isinstance(condition, sympy.Eq) or condition.rhs != 0:
            return condition
        remainder = condition.lhs
        if not isinstance(remainder, PythonMod) or not isinstance(remainder.args[0], FloorDiv):
            return condition
        (size, divisor), steps = remainder.args[0].args, remainder.args[1]
        if not (divisor.is_Integer and steps.is_Integer and divisor > 0):
            return condition
        is_whole = self._proofs.always(sympy.Eq(PythonMod(size, divisor), 0))
        return sympy.Eq(PythonMod(size, divisor * steps), 0) if is_whole else condition


def _divisors_in(condition: Any) -> set[Any]:
    """What a condition divides by, but for numbers: it cannot be asked where that is 0."""
    return {
        part.args[1] for part in condition.atoms(FloorDiv, PythonMod) if part.args[1].free_symbols
    }


def proofs_of(plan: Plan, facts: Iterable[Any] = (), least: int | None = None) -> SizeProofs:
    """Proofs about the sizes of a plan, or about those of them that are ``least`` or more."""
    steps = [
        sympy.Eq(PythonMod(symbol_of(symbol), symbol.step), 0)
        for symbol in plan.symbols
        if symbol.step > 1
    ]
    lows = {s.name: s.low if least is None else max(s.low, least) for s in plan.symbols}
    return SizeProofs(lows, [*facts, *steps])


def symbol_of(symbol: Symbol) -> Any:
    """The symbol as expressions of the plan have it; one that may be negative stands for itself
    in a trace alone.
    """
    if symbol.low < 0:
        return sympy.Symbol(symbol.name, integer=True)
    return sympy.Symbol(symbol.name, integer=True, nonnegative=True)


def value_at(expression: Any, numbers: Mapping[Any, Any]) -> Any:
    """An expression with numbers for its symbols; None where it divides by 0 at these."""
    try:
        return expression.xreplace(dict(numbers))
    except ZeroDivisionError:
        return None


#: what stands for a function of expressions: sympy knows more of a minimum than torch does
_TRANSLATED = {Floor: FloorDiv, Min: sympy.Min, Max: sympy.Max}


@lru_cache(maxsize=16384)
def _with_torch_floor(value: Any) -> Any:
    """The expression with the floor division of torch, and the minimum of sympy.

    Padded sides of images nest a maximum per layer: each part is translated once.
    """
    if not value.has(*_TRANSLATED):
        return value
    parts = map(_with_torch_floor, value.args)
    return _TRANSLATED.get(value.func, value.func)(*parts)


def in_least_terms(condition: Any) -> Any:
    """The condition without the number that both sides are multiples of: torch compares strides
    (``4096 < 4096 * n``) where it asks about sizes, and the start of a slice (``-n > -64``).

    >>> n = sympy.Symbol("n", integer=True, nonnegative=True)
    >>> in_least_terms(4096 < 4096 * n)
    n > 1
    >>> in_least_terms(-n > -64)
    n < 64
    """
    if not isinstance(condition, Relational):
        return condition
    if all(side.could_extract_minus_sign() for side in condition.args):
        condition = condition.reversedsign
    parts = [side.as_content_primitive() for side in condition.args if side != 0]
    if not parts or not all(content.is_Integer for content, _ in parts):
        return condition
    common = sympy.igcd(0, *(content for content, _ in parts))
    if common < 2:
        return condition
    rests = iter(content // common * rest for content, rest in parts)
    return condition.func(*(side if side == 0 else next(rests) for side in condition.args))


def key_of(condition: Any) -> tuple[str, str]:
    """A form in which equal conditions of integers are equal: ``a > b`` and ``b < a`` and
    ``a - b >= 1``.
    """
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
        return word.join(
            f"({written(p)})" if isinstance(p, (sympy.And, sympy.Or)) else written(p) for p in parts
        )
    if isinstance(condition, sympy.Not):
        return f"not ({written(condition.args[0])})"
    return str(condition)


def _printed(value: Any) -> str:
    return str(PythonPrinter().doprint(value)).replace("torch.sym_float(", "float(")
