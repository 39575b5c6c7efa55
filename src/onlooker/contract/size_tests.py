"""Conditions of a region as tests of terms.

Each condition becomes the first of these that fits:

- ``(n - 1)//2 + 1 > 3`` tests a symbol: what is left of ``>`` never falls where ``n`` grows, and so the
  answer changes once, and the size at which it does is searched for: 7;
- ``2*n + 1 <= k + 8`` tests a sum of symbols without its constant, ``k - 2*n``, for ``>= -7``;
  ``(n + k) % 4 == 2`` tests the remainder of ``k + n``;
- ``n == 2 or k == 3`` is a term of its own that is 1 where it holds, and 0 where it fails.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeGuard

from ..core.contract import Region
from ..core.plan import Symbol
from ..core.sizes.formula import holds, negated, renamed
from .size_sets import Term, Test
from .size_sums import Limits, Sum, added, limits_of, limits_of_sum, sum_of, text_of

__all__ = ["by_term", "range_tests", "tests_of"]

#: cells are looked for over at most so many sizes in a row: the period of all moduli of a term
_LONGEST_PERIOD = 5040
#: a size beyond which nothing is looked for
_GREATEST_SIZE = 2**40

_COMPARED: Mapping[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}


def by_term(tests: Iterable[Test]) -> dict[str, list[Test]]:
    """Returns the tests of each term."""
    found: dict[str, list[Test]] = {}
    for test in tests:
        found.setdefault(test.term, []).append(test)
    return found


def range_tests(symbol: Symbol, term: Term) -> Iterator[Test]:
    """The range of a symbol in one plan, where it is narrower than that of the term."""
    low, high = term.limits
    if symbol.low != low:
        yield Test(symbol.name, f"value >= {symbol.low}", (symbol.low,))
    if symbol.high is not None and symbol.high != high:
        yield Test(symbol.name, f"value <= {symbol.high}", (symbol.high,))
    if symbol.step != term.step:
        yield Test(symbol.name, f"value % {symbol.step} == 0", modulus=symbol.step)


def tests_of(region: Region, own: Sequence[Test], terms: dict[str, Term]) -> list[Test]:
    """The tests of a region; a term that nobody knows is added. ``own`` are the tests of the plan.

    A condition on several symbols that holds wherever those on single symbols hold is left out.
    """
    symbols = [term for text, term in terms.items() if text.isidentifier()]
    names = frozenset(symbol.text for symbol in symbols)
    single, several = [], []
    for constraint in region.constraints:
        for part in _conjuncts(ast.parse(constraint.formula, mode="eval").body):
            test = _test_of(part, names, terms)
            if test.term in names:
                single.append(test)
            else:
                several.append((part, test))
    limits = _limits_of_symbols([*own, *single], symbols)
    return [*single, *(test for part, test in several if not _always_holds(part, limits))]


def _conjuncts(tree: ast.expr) -> Iterator[ast.expr]:
    """The conditions that all have to hold; a comparison that has to fail is its opposite."""
    match tree:
        case ast.Constant(value=True):
            return
        case ast.BoolOp(op=ast.And(), values=values):
            for part in values:
                yield from _conjuncts(part)
        case ast.UnaryOp(operand=ast.Compare() as operand):
            yield ast.parse(negated(ast.unparse(operand)), mode="eval").body
        case _:
            yield tree


def _test_of(part: ast.expr, symbols: Collection[str], terms: dict[str, Term]) -> Test:
    found = None
    if _is_comparison(part):
        found = _test_of_symbol(part, symbols, terms) or _test_of_sum(part, terms)
    return found or _truth(part, terms)


def _is_comparison(part: ast.expr) -> TypeGuard[ast.Compare]:
    """True for a comparison of two formulas that are ints at all sizes."""
    return (
        isinstance(part, ast.Compare)
        and len(part.ops) == 1
        and type(part.ops[0]) in _COMPARED
        and not any(map(_may_be_fraction, ast.walk(part)))
    )


def _may_be_fraction(node: ast.AST) -> bool:
    """True for what has other numbers than ints: sizes between two ints are no cell."""
    match node:
        case ast.Div() | ast.Pow():
            return True
        case ast.Constant(value=value):
            return type(value) is not int
        case ast.Call(func=function):
            return ast.unparse(function) not in ("min", "max", "abs", "int")
    return False


def _difference(part: ast.Compare) -> ast.BinOp:
    return ast.BinOp(part.left, ast.Sub(), part.comparators[0])


# ------------------------------------------------------------------------ what always holds


def _limits_of_symbols(tests: Iterable[Test], symbols: Iterable[Term]) -> dict[str, Limits]:
    """The least and the greatest size of each symbol for which its tests hold."""
    own = by_term(test for test in tests if test.modulus == 1)
    found: dict[str, Limits] = {}
    for symbol in symbols:
        limits = symbol.limits_by(own.get(symbol.text, ()))
        if limits is not None:
            found[symbol.text] = limits
    return found


def _always_holds(part: ast.expr, limits: Mapping[str, Limits]) -> bool:
    """True for a comparison that holds for all sizes in the limits; False where this does not
    tell.
    """
    if not _is_comparison(part):
        return False
    difference = _difference(part)
    as_written, as_sum = limits_of(difference, limits), limits_of_sum(sum_of(difference), limits)
    low, high = max(as_written[0], as_sum[0]), min(as_written[1], as_sum[1])
    match part.ops[0]:
        case ast.GtE():
            return low >= 0
        case ast.Gt():
            return low > 0
        case ast.LtE():
            return high <= 0
        case ast.Lt():
            return high < 0
        case ast.NotEq():
            return low > 0 or high < 0
    return low == high == 0


# ------------------------------------------------------------------------ what becomes of a condition


def _truth(part: ast.expr, terms: dict[str, Term]) -> Test:
    """A condition as a term that is 1 where it holds, and 0 where it fails."""
    wanted = 1
    if isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.Not):
        part, wanted = part.operand, 0
    name = f"({ast.unparse(part)})"
    terms.setdefault(name, Term(name, (0, 1), is_condition=True))
    return Test(name, f"value == {wanted}", (1,))


def _test_of_symbol(
    part: ast.Compare, symbols: Collection[str], terms: Mapping[str, Term]
) -> Test | None:
    """A comparison of what only grows, or only falls, with one symbol: ``(n - 1) // 2 + 1 > 3``.

    Its answer changes where the difference of both sides reaches 0, and where it passes 0.
    """
    names = {node.id for node in ast.walk(part) if isinstance(node, ast.Name)}
    names &= set(symbols)
    if len(names) != 1:
        return None
    (name,) = names
    low, _ = terms[name].limits
    difference = _difference(part)
    way = _way(difference, name, int(low)) if low >= 0 else None
    if not way:
        return None
    value = _of_value(difference)
    sides = (f"{value} >= 0", f"{value} > 0") if way > 0 else (f"{value} <= 0", f"{value} < 0")
    found = (_first(side, int(low)) for side in sides)
    bounds = tuple(bound for bound in found if bound is not None)
    return Test(name, _of_value(part), bounds)


def _of_value(node: ast.expr) -> str:
    """The text of a formula of one symbol, as one of ``value``."""
    return renamed(node, lambda _: "value")


def _way(node: ast.expr, name: str, least: int) -> int | None:
    """1 for what never falls where the symbol grows, -1 for what never grows, 0 for a number; None
    for what may do both. ``least`` is the least size of the symbol.
    """
    match node:
        case ast.Constant(value=int()):
            return 0
        case ast.Name(id=found):
            return 1 if found == name else None
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _times(_way(operand, name, least), -1)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
            sign = 1 if isinstance(op, ast.Add) else -1
            return _shared_way(_way(left, name, least), _times(_way(right, name, least), sign))
        case (
            ast.BinOp(left=ast.Constant(value=int(factor)), op=ast.Mult(), right=inner)
            | ast.BinOp(left=inner, op=ast.Mult(), right=ast.Constant(value=int(factor)))
        ):
            return _times(_way(inner, name, least), factor)
        case ast.BinOp(left=inner, op=ast.FloorDiv(), right=ast.Constant(value=int(divisor))):
            return _way(inner, name, least) if divisor > 0 else None
        case ast.BinOp(left=ast.Constant(value=1), op=ast.Mod(), right=inner):
            # 1 % n is 0 for 1, and 1 for all that is more
            is_positive = holds(f"{_of_value(inner)} >= 1", {"value": least})
            return 1 if is_positive and _way(inner, name, least) == 1 else None
        case ast.Call(func=ast.Name(id="min" | "max"), args=parts):
            return _shared_way(*(_way(part, name, least) for part in parts))
    return None


def _times(way: int | None, factor: int) -> int | None:
    """The way of a multiple."""
    if way is None or factor > 0:
        return way
    return -way if factor else 0


def _shared_way(*ways: int | None) -> int | None:
    """The way that all of some go, of which some may be numbers."""
    found = {*ways} - {0}
    return found.pop() if len(found) == 1 else None if found else 0


def _first(formula: str, least: int) -> int | None:
    """The least value from which on a condition holds that stays true once it holds; None where it
    holds for no value that is a size.
    """
    # first by doubling until the condition holds, then between the last two by halving
    step = 1
    while not holds(formula, {"value": least + step}):
        step *= 2
        if step > _GREATEST_SIZE:
            return None
    low, high = least - 1, least + step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(formula, {"value": middle}) else (middle, high)
    return high


def _test_of_sum(part: ast.Compare, terms: dict[str, Term]) -> Test | None:
    """A comparison of two sums, or of a remainder with a number; None for anything else."""
    operator = _COMPARED[type(part.ops[0])]
    left, right, modulus = part.left, sum_of(part.comparators[0]), 1
    if isinstance(left, ast.BinOp) and isinstance(left.op, ast.Mod):
        divisor = left.right.value if isinstance(left.right, ast.Constant) else None
        if not isinstance(divisor, int) or operator not in ("==", "!=") or right.keys() > {()}:
            return None
        if not 0 <= right.get((), 0) < divisor <= _LONGEST_PERIOD:
            return None
        left, modulus = left.left, divisor
    # 2*n + 1 <= k + 8 is 2*n - k - 7 <= 0: the term is k - 2*n, the scale -1 and the offset -7
    total = added(sum_of(left), right, -1)
    offset = total.pop((), 0)
    if not total:
        return None
    scale = math.gcd(*total.values())
    scale = -scale if total[min(total)] < 0 else scale
    term = _term_of({product: factor // scale for product, factor in total.items()}, terms)
    grid = math.lcm(term.grid, term.step, modulus)
    if grid > _LONGEST_PERIOD:
        return None
    term.grid = grid
    value = f"{scale}*value + {offset}"
    if modulus > 1:
        return Test(term.text, f"({value}) % {modulus} {operator} 0", modulus=modulus)
    return Test(term.text, f"{value} {operator} 0", (-offset // scale,))


def _term_of(total: Sum, terms: dict[str, Term]) -> Term:
    """The term of a sum; one that nobody knows is added."""
    text = text_of(total)
    if text not in terms:
        symbols = {name: term.limits for name, term in terms.items() if name.isidentifier()}
        terms[text] = Term(text, limits_of_sum(total, symbols))
    return terms[text]
