"""Sizes at the bounds of a contract: where a condition that a call must satisfy, or need not, changes its answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..core.contract import Contract
from ..core.formula import holds
from ..core.plan import Plan

__all__ = ["boundary_sizes"]

#: how far from 0 a bound is looked for, beyond the sizes that were seen, and the most sizes that are given
_REACH, _MOST = 130, 16


def boundary_sizes(plan: Plan, contract: Contract, base: Mapping[str, int]) -> list[dict[str, int]]:
    """Sizes on both sides of every bound of a contract, of kept constraints and of dropped ones; one symbol differs
    from ``base``.
    """
    found: list[dict[str, int]] = []
    for sizes in _both_sides(plan, contract, base):
        if sizes not in found:
            found.append(sizes)
    return found[:_MOST]


def _both_sides(plan: Plan, contract: Contract, base: Mapping[str, int]) -> Iterator[dict[str, int]]:
    kept = [constraint.formula for region in contract.regions for constraint in region.constraints]
    formulas = dict.fromkeys([*kept, *(dropped.formula for dropped in contract.dropped)])
    middle = {symbol.name: base.get(symbol.name, max(symbol.low, 3)) for symbol in plan.symbols}
    for formula in formulas:
        for symbol in plan.symbols:
            if symbol.name not in formula:
                continue
            most = min(symbol.high or _REACH, max(_REACH, 2 * max(symbol.observed, default=2)))
            sizes = [size for size in range(symbol.low, most + 1) if size % symbol.step == 0]
            answers = [holds(formula, {**middle, symbol.name: size}) for size in sizes]
            changes = [i for i in range(1, len(sizes)) if answers[i] != answers[i - 1]]
            for position in (*changes[:2], *changes[-1:]):
                yield {**middle, symbol.name: sizes[position - 1]}
                yield {**middle, symbol.name: sizes[position]}
