"""Sizes at the bounds of a contract: where a condition that a call must satisfy, or need not,
changes its answer.

Of a graph with ``sequence > 24`` that was watched with 30 and 41 tokens, the sizes of ``sequence`` are gone through
while those of all other symbols stay::

    24, 25         on both sides of the condition
    23, 26, 83     beside these, and beyond the greatest size that was seen
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Sequence

from ..core.contract import Contract
from ..core.plan import Plan, Symbol, symbol_names
from ..core.sizes.expression import Sizes
from ..core.sizes.formula import holds, read_formula, variables_of

__all__ = ["between_bounds", "boundary_sizes", "failing_sizes", "is_int"]

#: how far from 0 a bound is looked for, beyond the sizes that were seen; the greatest number of a
#: condition that is looked for all the same
_REACH, _FURTHEST = 130, 1024
#: the greatest bound of a model that is tried
_GREATEST = 4096
#: how far beyond the greatest value that was seen an int is tried
_FAR = 4


def boundary_sizes(plan: Plan, contract: Contract, base: Sizes) -> list[Sizes]:
    """Sizes on both sides of every bound of a contract, of kept constraints and of dropped ones,
    and the ends of every range; one symbol differs from ``base``. Of a modulus, which has many
    bounds, the first two and the last one.

    An int that is no size is tried at 0, below its range and far beyond what was seen as well.
    """
    middle = _middle(plan, base)
    found: list[Sizes] = []
    for symbol in plan.symbols:
        for size in (*_sides(plan, contract, middle, symbol), *_ends(plan, symbol)):
            sizes = {**middle, symbol.name: size}
            if sizes not in found:
                found.append(sizes)
    return found


def between_bounds(plan: Plan, contract: Contract, base: Sizes) -> list[Sizes]:
    """The neighbours of the sizes at bounds, one size between two bounds, and one beyond the
    last.
    """
    middle = _middle(plan, base)
    found: list[Sizes] = []
    for symbol in plan.symbols:
        sides = sorted({*_sides(plan, contract, middle, symbol)})
        if not sides:
            continue
        neighbours = [size + way * symbol.step for size in sides for way in (-1, 1)]
        between = [(low + high) // 2 for low, high in itertools.pairwise(sides)]
        beyond = 2 * max((sides[-1], *symbol.observed)) + 1
        for size in (*neighbours, *between, beyond):
            size -= size % symbol.step
            sizes = {**middle, symbol.name: size}
            if size not in sides and symbol.allows(size) and sizes not in found:
                found.append(sizes)
    return found


def failing_sizes(plan: Plan, formula: str, base: Sizes) -> list[Sizes]:
    """Sizes at which a condition fails: of each of its symbols the next smaller and larger one
    than in ``base``.
    """
    tree = read_formula(formula, symbol_names(plan))
    middle = _middle(plan, base)
    found: list[Sizes] = []
    for symbol in plan.symbols:
        if symbol.name not in variables_of(tree):
            continue
        valid = _valid_sizes(symbol, max(_REACH, _greatest(tree) + 2))
        failing = [size for size in valid if not holds(formula, {**middle, symbol.name: size})]
        smaller = [size for size in failing if size < middle[symbol.name]]
        larger = [size for size in failing if size > middle[symbol.name]]
        found += [{**middle, symbol.name: size} for size in (*smaller[-1:], *larger[:1])]
    return found


def is_int(plan: Plan, symbol: Symbol) -> bool:
    """True for the number of an int argument, which no tensor has as a size."""
    return not any(symbol.name in e.symbols for leaf in plan.inputs for e in leaf.shape)


def _middle(plan: Plan, base: Sizes) -> Sizes:
    return {symbol.name: base.get(symbol.name, max(symbol.low, 3)) for symbol in plan.symbols}


def _sides(plan: Plan, contract: Contract, middle: Sizes, symbol: Symbol) -> Iterator[int]:
    """The sizes of a symbol on both sides of every change of a condition."""
    kept = [constraint.formula for region in contract.regions for constraint in region.constraints]
    for formula in dict.fromkeys([*kept, *(dropped.formula for dropped in contract.dropped)]):
        tree = read_formula(formula, symbol_names(plan))
        if symbol.name not in variables_of(tree):
            continue
        valid = _valid_sizes(symbol, max(_REACH, _greatest(tree) + 2))
        answers = [holds(formula, {**middle, symbol.name: size}) for size in valid]
        changes = [i for i in range(1, len(valid)) if answers[i] != answers[i - 1]]
        for position in dict.fromkeys((*changes[:2], *changes[-1:])):
            yield valid[position - 1]
            yield valid[position]


def _valid_sizes(symbol: Symbol, reach: int) -> Sequence[int]:
    """The sizes of the range and the step of a symbol in which bounds are looked for."""
    return symbol.sizes_up_to(max(reach, 2 * max(symbol.observed, default=2)))


def _greatest(tree: ast.expr) -> int:
    """The greatest number of a condition, of those that are no sizes beyond all use."""
    numbers = (
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and type(node.value) is int
    )
    return max((number for number in numbers if number <= _FURTHEST), default=0)


def _ends(plan: Plan, symbol: Symbol) -> Iterator[int]:
    """The greatest size of the range, where it is near or a bound of the model; for an int also 0,
    what is below the range, and a far one.
    """
    near = _valid_sizes(symbol, _GREATEST if symbol.limit else _REACH)
    if symbol.high is not None and near and near[-1] + symbol.step > symbol.high:
        yield near[-1]
    if not is_int(plan, symbol):
        return
    yield 0
    yield symbol.low - symbol.step
    far = _FAR * max((*symbol.observed, 1)) + 1
    far -= far % symbol.step
    if symbol.allows(far):
        yield far
