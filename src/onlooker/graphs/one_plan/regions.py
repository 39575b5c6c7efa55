"""Regions of sizes for which one graph is proven, and how two of them become one.

A trace proves its graph for all sizes that satisfy its path condition. Another trace, on the other
side of one of these conditions, may give the same graph: then the graph is proven there too, and
the condition is not needed.

An example, in which three traces gave one graph:

    traced with             conditions                          fixed sizes
    n = 12, batch = 3       n % 4 == 0, batch != 1
    n = 13, batch = 3       n % 4 != 0, batch != 1
    n = 12, batch = 1       n % 4 == 0                          batch == 1

The second region holds wherever ``n % 4 == 0`` fails and the other condition of the first one holds. So
the first one holds without it: ``batch != 1`` is left, and the second region lies inside of that. The
third region is the first one at ``batch = 1``, where ``batch != 1`` alone excludes it. That condition goes
as well, if the third region holds for all ``n`` that the first one holds for: here it does not, since it
still asks for ``n % 4 == 0``. So the contract has two regions, ``batch != 1``, and ``batch == 1`` with
``n % 4 == 0``. A fourth trace, with ``n = 13`` and ``batch = 1``, would leave one region without conditions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import sympy

from ...core.contract import Constraint, Contract, Dropped, Origin, Region
from ...core.plan import Plan, Symbol
from ...core.sizes.expression import Sizes
from ...proofs.linear import Linear
from ...proofs.path_condition import Atom, key_of, proofs_of
from ...repairs.loops.rolled_loops import Rolling

__all__ = ["ProvenRegion", "bounded_plan", "contract_of"]

Atoms = Mapping[tuple[str, str], Atom]


@dataclass(frozen=True)
class ProvenRegion:
    """Sizes for which a graph is proven by one trace.

    ``fixed`` are symbols that were a number in the trace, ``atoms`` its path condition, ``bounds``
    the sizes beyond which the model itself refuses what the path condition allows, ``limits``
    what is not proven by it (sizes of 0 and 1 at which the graph differs), ``sizes`` those of its
    example, ``tried`` the conditions of operators that are tried where they fail, ``reads`` the
    sizes that the model read. ``not_tracing`` is True where the model was told that it is not traced.
    ``rolling`` says which loops the trace rolled, ``unread`` which attributes each call sets before it
    reads them.
    """

    fixed: Sizes
    atoms: Atoms
    limits: tuple[Constraint, ...]
    sizes: Sizes
    evidence: str
    tried: tuple[Atom, ...] = ()
    reads: tuple[tuple[Any, ...], ...] = ()
    dropped: tuple[Dropped, ...] = field(default=())
    not_tracing: bool = False
    rolling: Rolling = field(default_factory=Rolling)
    bounds: tuple[Atom, ...] = ()
    unread: frozenset[str] = frozenset()

    def has_its_numbers(self, sizes: Sizes) -> bool:
        """True for sizes of which the trace would have made the same numbers."""
        return all(atom.constraint().holds(sizes) for atom in self.atoms.values() if atom.is_number)

    def holds(self, sizes: Sizes) -> bool:
        """True for sizes in the region."""
        return self.region.holds(sizes)

    @cached_property
    def region(self) -> Region:
        """The region as a value without sympy."""
        pinned = tuple(
            Constraint(f"{name} == {size}", Origin.FIXED) for name, size in self.fixed.items()
        )
        atoms = (*self.atoms.values(), *self.bounds)
        return Region(
            (*pinned, *(atom.constraint() for atom in atoms), *self.limits),
            self.evidence,
        )

    def greatest(self, name: str, plan: Plan) -> tuple[int, str] | None:
        """The greatest size of a symbol that the bounds leave, and what ends there; None where no
        bound is about it.
        """
        if name in self.fixed:
            return self.fixed[name], ""
        others = {**{symbol.name: symbol.low for symbol in plan.symbols}, **self.fixed}
        found: list[tuple[int, str]] = []
        for bound in self.bounds:
            linear = Linear.of(bound.condition)
            if linear is None or any(count < 0 for _, count in linear.parts):
                continue
            most = linear.greatest(name, others)
            if most is not None:
                found.append((most, _told(bound)))
        return min(found, default=None)

    def is_bounded_by(self, bounds: Iterable[Atom]) -> bool:
        """True where each of some bounds is one of this region, at its fixed sizes."""
        own = {atom.key for atom in self.bounds}
        at_fixed_sizes = (_at_sizes(bound.condition, self.fixed) for bound in bounds)
        return all(at in (True, sympy.true) or key_of(at) in own for at in at_fixed_sizes)


def contract_of(plan: Plan, regions: Sequence[ProvenRegion]) -> Contract:
    """The contract of a graph: its regions, with as few constraints as the proofs allow."""
    joined = _joined(list(regions), plan)
    dropped = dict.fromkeys(item for region in joined for item in region.dropped)
    return Contract(tuple(region.region for region in joined), tuple(dropped))


def bounded_plan(plan: Plan, regions: Sequence[ProvenRegion]) -> Plan:
    """The plan with the greatest size of each symbol that the bounds of all regions leave."""
    return replace(plan, symbols=tuple(_bounded(symbol, plan, regions) for symbol in plan.symbols))


def _bounded(symbol: Symbol, plan: Plan, regions: Sequence[ProvenRegion]) -> Symbol:
    """The symbol up to where some region still has its sizes, with what ends there."""
    greatest: list[tuple[int, str]] = []
    for region in regions:
        found = region.greatest(symbol.name, plan)
        if found is None:
            return symbol
        greatest.append(found)
    high, limit = max(greatest, default=(0, ""))
    high -= high % symbol.step
    is_known = symbol.high is not None and symbol.high <= high
    if is_known or not limit or high < symbol.low:
        return symbol
    return replace(symbol, high=high, limit=limit)


def _told(bound: Atom) -> str:
    """Returns in few words what ends at a bound, and the line of the model."""
    place, _, _ = bound.line.partition(" in ")
    return f"{bound.reason}, {place}" if place else bound.reason


def _joined(regions: list[ProvenRegion], plan: Plan) -> list[ProvenRegion]:
    """The regions, as long as one of them can be replaced by a larger one that the others prove."""
    while (pair := _next_pair(regions, plan)) is not None:
        first, second, larger = pair
        others = [region for region in regions if region is not first]
        if _is_inside(second, larger):
            others = [region for region in others if region is not second]
        regions = [larger, *others]
    return regions


def _next_pair(
    regions: Sequence[ProvenRegion], plan: Plan
) -> tuple[ProvenRegion, ProvenRegion, ProvenRegion] | None:
    """A region, another one that proves the other side of some of its conditions, and the first
    one without them.
    """
    for first in regions:
        for second in regions:
            if first is not second:
                larger = first if _is_inside(second, first) else _enlarged(first, second, plan)
                if larger is not None:
                    return first, second, larger
    return None


def _is_inside(small: ProvenRegion, large: ProvenRegion) -> bool:
    """True where every condition of the large region is one of the small one, or holds by its
    fixed sizes.
    """
    if any(small.fixed.get(name) != size for name, size in large.fixed.items()):
        return False
    if not {limit.formula for limit in large.limits} <= {limit.formula for limit in small.limits}:
        return False
    if not small.is_bounded_by(large.bounds):
        return False
    for atom in large.atoms.values():
        condition = _at_sizes(atom.condition, small.fixed)
        if condition not in (True, sympy.true) and (
            condition in (False, sympy.false) or key_of(condition) not in small.atoms
        ):
            return False
    return True


def _enlarged(first: ProvenRegion, second: ProvenRegion, plan: Plan) -> ProvenRegion | None:
    """``first`` without the conditions of which ``second`` proves the other side; None where
    that is not so.
    """
    if {limit.formula for limit in second.limits} - {limit.formula for limit in first.limits}:
        return None
    if any(second.fixed.get(name) != size for name, size in first.fixed.items()):
        return None
    if not _has_bounds_of(first, second):
        return None
    further = {name: size for name, size in second.fixed.items() if name not in first.fixed}
    if not further:
        return _enlarged_by_condition(first, second, plan)
    if len(further) == 1:
        return _enlarged_by_pin(first, second, *next(iter(further.items())), plan)
    return None


def _has_bounds_of(first: ProvenRegion, second: ProvenRegion) -> bool:
    """True where the first region, at the fixed sizes of the second one, has all bounds of that one."""
    there = {key_of(_at_sizes(bound.condition, second.fixed)) for bound in first.bounds}
    return all(bound.key in there for bound in second.bounds)


def _enlarged_by_condition(
    first: ProvenRegion, second: ProvenRegion, plan: Plan
) -> ProvenRegion | None:
    """The second region holds wherever one condition of the first one fails and the others hold."""
    for gone in (key for key in first.atoms if key not in second.atoms):
        others = [atom.condition for key, atom in first.atoms.items() if key != gone]
        facts = [sympy.Not(first.atoms[gone].condition), *others]
        known = {key_of(fact) for fact in facts}
        open_ = [atom.condition for key, atom in second.atoms.items() if key not in known]
        if not open_ or all(map(proofs_of(plan, facts).always, open_)):
            return _without(first, [gone], second)
    return None


def _enlarged_by_pin(
    first: ProvenRegion, second: ProvenRegion, name: str, size: int, plan: Plan
) -> ProvenRegion | None:
    """``second`` is ``first`` at one size of one symbol, which some conditions of ``first``
    exclude.
    """
    lows = {symbol.name: symbol.low for symbol in plan.symbols}
    gone: list[tuple[str, str]] = []
    kept: set[tuple[str, str]] = set()
    for key, atom in first.atoms.items():
        there = _at(atom.condition, name, size)
        if there in (False, sympy.false):
            if not _excludes_only(atom.condition, name, size, lows):
                return None
            gone.append(key)
        elif there not in (True, sympy.true):
            kept.add(key_of(there))
    if not gone or any(key not in kept for key in second.atoms):
        return None
    return _without(first, gone, second)


def _at(condition: Any, name: str, size: int) -> Any:
    return condition.subs(
        {symbol: size for symbol in condition.free_symbols if symbol.name == name}
    )


def _at_sizes(condition: Any, sizes: Sizes) -> Any:
    for name, size in sizes.items():
        condition = _at(condition, name, size)
    return condition


def _excludes_only(condition: Any, name: str, size: int, lows: Sizes) -> bool:
    """True for a condition that fails, within the plan, at this one size of the symbol and
    nowhere else.
    """
    symbols = {symbol.name: symbol for symbol in condition.free_symbols}
    if set(symbols) == {name}:
        return _fails_only_at(condition, symbols[name], size, lows.get(name, 0))
    if isinstance(condition, sympy.Ne) and size == 0:
        difference = condition.lhs - condition.rhs
        product = sympy.factor(difference) if difference.is_polynomial() else difference
        factors = sympy.Mul.make_args(product)
        plain = all(factor.is_number or factor.is_Symbol for factor in factors)
        return plain and all(lows.get(other, 0) > 0 for other in symbols if other != name)
    return False


def _fails_only_at(condition: Any, symbol: Any, size: int, low: int) -> bool:
    """Linear conditions of one symbol: ``n != 1``, and ``n > 1`` where 1 is the least size."""
    kind, text = key_of(condition)
    if kind not in ("!=", ">=") or not (condition.lhs - condition.rhs).is_polynomial(symbol):
        return False
    difference = sympy.expand(
        condition.lhs - condition.rhs
        if kind == "!="
        else sympy.sympify(text, locals={symbol.name: symbol})
    )
    if sympy.degree(difference, symbol) != 1:
        return False
    if kind == "!=":
        return bool(difference.subs(symbol, size) == 0)
    rises = difference.coeff(symbol, 1) > 0
    return bool(rises and size == low and difference.subs(symbol, size + 1) >= 0)


def _without(
    first: ProvenRegion, gone: Iterable[tuple[str, str]], second: ProvenRegion
) -> ProvenRegion:
    """The first region without some conditions, of which the second one is the evidence."""
    keys = set(gone)
    found = tuple(
        Dropped(
            atom.formula,
            f"the same graph on both sides, {first.evidence} and {second.evidence}",
            atom.line,
        )
        for key, atom in first.atoms.items()
        if key in keys
    )
    atoms = {key: atom for key, atom in first.atoms.items() if key not in keys}
    return replace(first, atoms=atoms, dropped=(*first.dropped, *second.dropped, *found))
