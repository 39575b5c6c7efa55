"""The sizes that some regions serve, in as few words as are exact.

A worked example. The regions of one graph are ``sequence >= 3 and batch >= 2``, ``sequence == 2``,
``sequence == 1`` and ``batch == 1``; the plan has both symbols from 1 on. Each formula is read as a
test of one term, a sum of symbols without its constant: ``(-1) + sequence == 1`` tests ``sequence``
for 2. The tests of a term divide its sizes into cells in which no test changes: ``sequence`` has 1,
2 and "3 and more", ``batch`` 1 and "2 and more". A region is a box of cells, and the four boxes
cover every pair of cells: the graph serves all sizes of the plan, and no condition is left to tell.

Different terms are taken for independent, though ``n`` and ``n + k`` are not. A box may then look
smaller against the whole than it is, and never larger: what is said to be served is served.
"""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeGuard

from ..core.contract import Region
from ..core.plan import Range, Symbol
from ..core.sizes.formula import holds, negated, renamed

__all__ = ["ServedSizes", "SizeSet", "served_sizes"]

#: cells are looked for over at most so many sizes in a row: the period of all moduli of a term
_LONGEST_PERIOD = 5040
#: boxes that are compared before the search for a cover ends without an answer
_MOST_STEPS = 20_000
#: intervals that are told of one term, and the longest term that is told
_MOST_INTERVALS, _LONGEST_TERM = 4, 40

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


@dataclass(frozen=True, slots=True)
class SizeSet:
    """The sizes of one term, as intervals whose ends are served; None where there is no end. Of a
    ``step`` above 1 only its multiples are served.

    >>> SizeSet("n", ((1, 24),)).words, SizeSet("n", ((2, None),), step=16).words
    ('n 1 to 24', 'n 2 and more, in steps of 16')
    >>> SizeSet("n", ((1, 2), (4, None))).words, SizeSet("n + k", ((None, 64),)).words
    ('n 1 to 2 or 4 and more', 'n + k up to 64')
    """

    term: str
    intervals: tuple[Range, ...]
    step: int = 1
    is_condition: bool = False

    @property
    def words(self) -> str:
        """The term with its sizes; a condition, which is 1 where it holds, as it is."""
        if self.is_condition:
            return self.term if self.holds(1) else f"not {self.term}"
        shown = [_interval(low, high) for low, high in self.intervals[:_MOST_INTERVALS]]
        more = len(self.intervals) - _MOST_INTERVALS
        shown += [f"{more} further intervals"] if more > 0 else []
        step = f", in steps of {self.step}" if self.step > 1 else ""
        return f"{self.term} {' or '.join(shown) or 'of no size'}{step}"

    @property
    def is_readable(self) -> bool:
        """True for a term that a reader takes in: a symbol, or a short sum of some."""
        return len(self.term) <= _LONGEST_TERM

    @property
    def is_of_numbers(self) -> bool:
        """True where single sizes are served, and no interval."""
        return all(low == high is not None for low, high in self.intervals)

    def holds(self, size: int) -> bool:
        """True for a size that is served."""
        return size % self.step == 0 and any(
            (low is None or low <= size) and (high is None or size <= high)
            for low, high in self.intervals
        )


def _interval(low: int | None, high: int | None) -> str:
    if low is None:
        return "any" if high is None else f"up to {high}"
    if high is None:
        return f"{low} and more"
    return str(low) if low == high else f"{low} to {high}"


@dataclass(frozen=True, slots=True)
class ServedSizes:
    """The sizes that some regions serve: all sizes of ``sets`` together; where these are not
    ``exact``, those that satisfy one of the ``cases`` as well, each a conjunction in words.

    ``limited`` are the terms of which not all sizes of the plan are served.
    """

    sets: tuple[SizeSet, ...] = ()
    limited: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()
    exact: bool = True


@dataclass(frozen=True, slots=True)
class _Test:
    """A condition on the value of one term, called ``value``. Its answer changes at the ``bounds``
    alone, or, where there is a ``modulus``, with the remainder.
    """

    formula: str
    bounds: tuple[int, ...] = ()
    modulus: int = 1

    def holds(self, value: int) -> bool:
        return holds(self.formula, {"value": value})


@dataclass(slots=True)
class _SumWithTests:
    """A sum of symbols with all its tests, and the range that the plan gives it; ``grid`` is what
    the moduli of all its tests divide.
    """

    text: str
    low: int | None
    high: int | None
    step: int = 1
    is_condition: bool = False
    grid: int = 1
    tests: dict[_Test, None] = field(default_factory=dict)
    cells: dict[tuple[bool, ...], list[int]] = field(default_factory=dict)

    @property
    def period(self) -> int:
        """So many sizes in a row, between two bounds, show all answers."""
        return math.lcm(self.step, *(test.modulus for test in self.tests))

    def divide(self) -> None:
        """Finds the cells: sizes by the answers of all tests, which no other sizes have."""
        for size in self._sizes(self.period):
            if size % self.step == 0:
                answers = tuple(test.holds(size) for test in self.tests)
                self.cells.setdefault(answers, []).append(size)

    def _sizes(self, period: int) -> Iterator[int]:
        """Sizes that show every cell: one period behind each size at which a test changes."""
        bounds = [bound for test in self.tests for bound in test.bounds]
        starts = {bound + way for bound in bounds for way in (-1, 0, 1)}
        starts |= {0} if self.low is None else {self.low}
        if self.low is None:
            starts.add(min(starts) - period)
        if self.high is not None:
            starts.add(self.high)
        found = {start + offset for start in starts for offset in range(period + 1)}
        for size in sorted(found):
            is_low = self.low is not None and size < self.low
            if not is_low and (self.high is None or size <= self.high):
                yield size

    def set_of(self, cells: frozenset[tuple[bool, ...]]) -> SizeSet | None:
        """The sizes of some cells as intervals; None where these are none of one step."""
        taken = {size for cell in cells for size in self.cells[cell]}
        sizes = sorted(size for found in self.cells.values() for size in found)
        for step in dict.fromkeys((self.step, math.gcd(self.period, *taken))):
            on_grid = [size for size in sizes if step and size % step == 0]
            if taken <= set(on_grid) and self._is_even(on_grid, taken):
                intervals = tuple(self._intervals(on_grid, taken))
                found = SizeSet(self.text, intervals, step, self.is_condition)
                return replace(found, step=1) if found.is_of_numbers else found
        return None

    def _is_even(self, on_grid: Sequence[int], taken: Collection[int]) -> bool:
        """True where no modulus tells sizes of the grid apart: between two bounds either all of them
        are taken, or none.
        """
        plain = [test for test in self.tests if test.modulus == 1]
        found: dict[tuple[bool, ...], bool] = {}
        for size in on_grid:
            answers = tuple(test.holds(size) for test in plain)
            if found.setdefault(answers, size in taken) != (size in taken):
                return False
        return True

    def _intervals(self, on_grid: Sequence[int], taken: Collection[int]) -> Iterator[Range]:
        for is_taken, run in itertools.groupby(on_grid, lambda size: size in taken):
            if is_taken:
                members = list(run)
                is_first = self.low is None and members[0] == on_grid[0]
                is_last = self.high is None and members[-1] == on_grid[-1]
                yield None if is_first else members[0], None if is_last else members[-1]


#: the cells of each term that a region allows; a term that is not there is free
_Box = Mapping[str, frozenset[tuple[bool, ...]]]


def served_sizes(parts: Sequence[tuple[Sequence[Symbol], Sequence[Region]]]) -> ServedSizes:
    """Returns the sizes that the regions of some graphs serve together; each part has the symbols
    of one graph, with the range that its plan gives them, and the regions of its contract.

    >>> from onlooker.core.contract import Constraint, Origin
    >>> def region(*formulas):
    ...     return Region(tuple(Constraint(formula, Origin.MODEL) for formula in formulas))
    >>> n = Symbol("n")
    >>> [found.words for found in served_sizes([((n,), (region("n > 4"), region("(-1) + n == 3")))]).sets]
    ['n 4 and more']
    >>> served_sizes([((n,), (region("n <= 24"),)), ((n,), (region("n > 24"),))]).limited
    ()
    >>> [found.words for found in served_sizes([((n,), (region("n % 16 == 0", "n != 32"),))]).sets]
    ['n 16 or 48 and more, in steps of 16']
    """
    terms = _terms_of_symbols(symbols for symbols, _ in parts)
    boxes = []
    for symbols, regions in parts:
        own = [test for symbol in symbols for test in _range_tests(symbol, terms[symbol.name])]
        boxes += [[*own, *_tests_of(region, own, terms)] for region in regions]
    for text, tests in _by_term(itertools.chain(*boxes)).items():
        terms[text].tests = dict.fromkeys(tests)
    for term in terms.values():
        term.divide()
    known = [found for box in boxes if (found := _box_of(box, terms)) is not None]
    return _told(known, terms)


def _terms_of_symbols(all_symbols: Iterable[Sequence[Symbol]]) -> dict[str, _SumWithTests]:
    """A term for each symbol, over the sizes that any of the plans allows."""
    terms: dict[str, _SumWithTests] = {}
    for symbol in itertools.chain(*all_symbols):
        term = terms.setdefault(
            symbol.name, _SumWithTests(symbol.name, symbol.low, symbol.high, symbol.step)
        )
        term.low = min(term.low or 0, symbol.low)
        term.high = (
            None if None in (term.high, symbol.high) else max(term.high or 0, symbol.high or 0)
        )
        term.step = math.gcd(term.step, symbol.step)
    return terms


def _range_tests(symbol: Symbol, term: _SumWithTests) -> Iterator[tuple[str, _Test]]:
    """The range of a symbol in one plan, where it is narrower than that of the term."""
    if symbol.low != term.low:
        yield symbol.name, _Test(f"value >= {symbol.low}", (symbol.low,))
    if symbol.high != term.high and symbol.high is not None:
        yield symbol.name, _Test(f"value <= {symbol.high}", (symbol.high,))
    if symbol.step != term.step:
        yield symbol.name, _Test(f"value % {symbol.step} == 0", modulus=symbol.step)


def _by_term(tests: Iterable[tuple[str, _Test]]) -> dict[str, list[_Test]]:
    found: dict[str, list[_Test]] = {}
    for text, test in tests:
        found.setdefault(text, []).append(test)
    return found


def _box_of(tests: Sequence[tuple[str, _Test]], terms: Mapping[str, _SumWithTests]) -> _Box | None:
    """The cells of each term in which all tests hold; None for a region that no sizes are in."""
    box = {}
    for text, own in _by_term(tests).items():
        places = [list(terms[text].tests).index(test) for test in own]
        cells = terms[text].cells
        allowed = frozenset(cell for cell in cells if all(cell[place] for place in places))
        if not allowed:
            return None
        if len(allowed) < len(cells):
            box[text] = allowed
    return box


def _told(boxes: Sequence[_Box], terms: Mapping[str, _SumWithTests]) -> ServedSizes:
    hulls = {
        text: frozenset[tuple[bool, ...]]().union(*(box.get(text, term.cells) for box in boxes))
        for text, term in terms.items()
    }
    limited = tuple(text for text, cells in hulls.items() if len(cells) < len(terms[text].cells))
    sets = {text: terms[text].set_of(cells) for text, cells in hulls.items()}
    is_told = all(sets[text] is not None for text in limited)
    narrower = [
        {text: cells for text, cells in box.items() if not cells >= hulls[text]} for box in boxes
    ]
    exact = bool(boxes) and is_told and _covers(narrower, hulls, [_MOST_STEPS])
    shown = tuple(
        found for text, found in sets.items() if found and _is_shown(text, terms, limited)
    )
    if exact:
        return ServedSizes(shown, limited)
    cases = [] if not boxes else _cases(boxes, terms)
    return ServedSizes(shown, limited, tuple(cases), exact=False)


def _is_shown(text: str, terms: Mapping[str, _SumWithTests], limited: Sequence[str]) -> bool:
    """Symbols are told always, other terms where they limit something."""
    return text in limited or text.isidentifier()


def _covers(
    boxes: Sequence[_Box], whole: Mapping[str, frozenset[tuple[bool, ...]]], steps: list[int]
) -> bool:
    """True where the boxes together are the product of the cells of all terms; False as well where
    too many steps would tell.
    """
    if any(not box for box in boxes):
        return True
    steps[0] -= 1
    if not boxes or steps[0] < 0:
        return False
    _, text = max((len(box), name) for box in boxes for name in box)
    by_members: dict[tuple[int, ...], None] = {}
    for cell in whole[text]:
        taking = (n for n, box in enumerate(boxes) if text not in box or cell in box[text])
        by_members.setdefault(tuple(taking))
    for members in by_members:
        rest = [{name: cells for name, cells in boxes[n].items() if name != text} for n in members]
        smaller = [
            {name: cells for name, cells in box.items() if not cells >= whole[name]} for box in rest
        ]
        if not _covers(smaller, whole, steps):
            return False
    return True


def _cases(boxes: Sequence[_Box], terms: Mapping[str, _SumWithTests]) -> list[str]:
    """Each box in words, without those that lie inside of another one."""
    found: dict[str, None] = {}
    for number, box in enumerate(boxes):
        inside = any(
            _is_inside(box, other) and (n < number or not _is_inside(other, box))
            for n, other in enumerate(boxes)
            if n != number
        )
        if not inside:
            sets = [terms[text].set_of(cells) for text, cells in box.items()]
            plain = [each.words for each in sets if each is not None and each.is_readable]
            count = len(sets) - len(plain)
            words = (
                [f"{count} further {'condition' if count == 1 else 'conditions'}"] if count else []
            )
            found.setdefault(" and ".join([*plain, *words]) or "all sizes")
    return list(found)


def _is_inside(box: _Box, other: _Box) -> bool:
    return all(text in box and box[text] <= cells for text, cells in other.items())


# ------------------------------------------------------------------------------ reading formulas

#: a sum: the factor of each product of symbols, and that of ``()``, the constant
_Sum = dict[tuple[str, ...], int]


def _tests_of(
    region: Region, own: Sequence[tuple[str, _Test]], terms: dict[str, _SumWithTests]
) -> list[tuple[str, _Test]]:
    """The tests of a region, each with its term; a term that nobody knows is added. ``own`` are the
    tests of the plan.

    A condition on several symbols that holds wherever those on single symbols hold is left out. What
    is no comparison of sums is a term of its own that is true or false.
    """
    symbols = frozenset(terms)
    parts = [
        part
        for constraint in region.constraints
        for part in _conjuncts(ast.parse(constraint.formula, mode="eval").body)
    ]
    tests = [
        _monotone(part, symbols, terms) or _comparison(part, terms) or _truth(part, terms)
        for part in parts
    ]
    single = [(text, test) for text, test in tests if text in symbols]
    limits = _limits_of_symbols([*own, *single], [terms[name] for name in symbols])
    several = [
        test
        for part, test in zip(parts, tests, strict=True)
        if test[0] not in symbols and not _always_holds(part, limits)
    ]
    return [*single, *several]


#: the least and the greatest value, infinite where nothing limits it
_Limits = tuple[float, float]
_ANY: _Limits = (-math.inf, math.inf)


def _limits_of_symbols(
    tests: Iterable[tuple[str, _Test]], symbols: Iterable[_SumWithTests]
) -> dict[str, _Limits]:
    """The least and the greatest size of each symbol for which its tests hold."""
    by_symbol = _by_term(tests)
    found = {}
    for symbol in symbols:
        own = [test for test in by_symbol.get(symbol.text, ()) if test.modulus == 1]
        low = 0 if symbol.low is None else symbol.low
        ends = {bound + way for test in own for bound in test.bounds for way in (-1, 0, 1)}
        beyond = max(ends, default=low) + 1 if symbol.high is None else symbol.high
        sizes = [size for size in {low, beyond, *ends} if low <= size <= beyond]
        held = [size for size in sizes if all(test.holds(size) for test in own)]
        if held:
            is_open = symbol.high is None and max(held) == beyond
            found[symbol.text] = (float(min(held)), math.inf if is_open else float(max(held)))
    return found


def _always_holds(part: ast.expr, limits: Mapping[str, _Limits]) -> bool:
    """True for a comparison that holds for all sizes in the limits; False where this does not
    tell.
    """
    if not _is_comparison(part):
        return False
    difference = ast.BinOp(part.left, ast.Sub(), part.comparators[0])
    as_written, as_sum = _limits_of(difference, limits), _limits_of_sum(_sum(difference), limits)
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
        case ast.Eq():
            return low == high == 0
    return False


def _limits_of(node: ast.expr, limits: Mapping[str, _Limits]) -> _Limits:
    """The least and the greatest value of a formula, or something further apart."""
    match node:
        case ast.Constant(value=int(number)):
            return (float(number), float(number))
        case ast.Name(id=name):
            return limits.get(name, _ANY)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            low, high = _limits_of(operand, limits)
            return (-high, -low)
        case ast.BinOp(left=left, op=op, right=right):
            return _limits_of_two(_limits_of(left, limits), op, _limits_of(right, limits))
        case ast.Call(func=ast.Name(id="min" | "max" as name), args=parts):
            ends = [_limits_of(part, limits) for part in parts]
            choose = min if name == "min" else max
            return (choose(low for low, _ in ends), choose(high for _, high in ends))
    return _ANY


def _limits_of_sum(total: _Sum, limits: Mapping[str, _Limits]) -> _Limits:
    """Returns the limits of a sum of products: ``n < n*k`` is known as soon as products are written
    out.
    """
    low = high = 0.0
    for product, factor in total.items():
        found = (float(factor), float(factor))
        for text in product:
            inner = _limits_of(ast.parse(text, mode="eval").body, limits)
            found = _limits_of_two(found, ast.Mult(), inner)
        low, high = low + found[0], high + found[1]
    return (low, high)


def _limits_of_two(left: _Limits, op: ast.operator, right: _Limits) -> _Limits:
    match op:
        case ast.Add():
            return (left[0] + right[0], left[1] + right[1])
        case ast.Sub():
            return (left[0] - right[1], left[1] - right[0])
        case ast.Mult():
            # nothing times what has no end is nothing
            products = [one * other if one and other else 0.0 for one in left for other in right]
            return (min(products), max(products))
        case ast.FloorDiv() if right[0] == right[1] > 0:
            low, high = (end // right[0] if math.isfinite(end) else end for end in left)
            return (low, high)
        case ast.Mod() if left == (1.0, 1.0) and right[0] >= 2:
            return left
        case ast.Mod() if right[0] >= 1:
            return (0.0, right[1] - 1)
    return _ANY


def _conjuncts(tree: ast.expr) -> Iterator[ast.expr]:
    """The conditions that all have to hold; a comparison that has to fail is its opposite."""
    if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And):
        for part in tree.values:
            yield from _conjuncts(part)
    elif isinstance(tree, ast.UnaryOp) and isinstance(tree.operand, ast.Compare):
        yield ast.parse(negated(ast.unparse(tree.operand)), mode="eval").body
    else:
        yield tree


def _truth(part: ast.expr, terms: dict[str, _SumWithTests]) -> tuple[str, _Test]:
    """A condition as a term that is 1 where it holds, and 0 where it fails."""
    wanted = 1
    if isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.Not):
        part, wanted = part.operand, 0
    name = f"({ast.unparse(part)})"
    terms.setdefault(name, _SumWithTests(name, 0, 1, is_condition=True))
    return name, _Test(f"value == {wanted}", (1,))


def _monotone(
    part: ast.expr, symbols: Collection[str], terms: Mapping[str, _SumWithTests]
) -> tuple[str, _Test] | None:
    """A comparison of what only grows, or only falls, with one symbol: ``(n - 1) // 2 + 1 > 3``.

    Its answer changes where the difference of both sides reaches 0, and where it passes 0.
    """
    if not _is_comparison(part):
        return None
    names = {node.id for node in ast.walk(part) if isinstance(node, ast.Name)}
    names &= set(symbols)
    if len(names) != 1 or type(part.ops[0]) not in _COMPARED:
        return None
    (name,) = names
    difference = ast.BinOp(part.left, ast.Sub(), part.comparators[0])
    least = terms[name].low
    way = None if least is None or least < 0 else _way(difference, name, least)
    if not way or least is None:
        return None
    value = renamed(difference, lambda _: "value")
    sides = (f"{value} >= 0", f"{value} > 0") if way > 0 else (f"{value} <= 0", f"{value} < 0")
    found = (_first(side, least) for side in sides)
    bounds = tuple(bound for bound in found if bound is not None)
    return name, _Test(renamed(part, lambda _: "value"), bounds)


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
            return _both(0, _way(operand, name, least), -1)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _both(_way(left, name, least), _way(right, name, least), 1)
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return _both(_way(left, name, least), _way(right, name, least), -1)
        case ast.BinOp(left=ast.Constant(value=int(factor)), op=ast.Mult(), right=inner):
            return _both(0, _way(inner, name, least), 1 if factor > 0 else -1 if factor else 0)
        case ast.BinOp(left=inner, op=ast.Mult(), right=ast.Constant(value=int(factor))):
            return _both(0, _way(inner, name, least), 1 if factor > 0 else -1 if factor else 0)
        case ast.BinOp(left=inner, op=ast.FloorDiv(), right=ast.Constant(value=int(divisor))):
            return _way(inner, name, least) if divisor > 0 else None
        case ast.BinOp(left=ast.Constant(value=1), op=ast.Mod(), right=inner):
            # 1 % n is 0 for 1, and 1 for all that is more
            text = renamed(inner, lambda _: "value")
            is_positive = holds(f"{text} >= 1", {"value": least})
            return 1 if is_positive and _way(inner, name, least) == 1 else None
        case ast.Call(func=ast.Name(id="min" | "max"), args=parts):
            way: int | None = 0
            for part in parts:
                way = _both(way, _way(part, name, least), 1)
            return way
    return None


def _both(first: int | None, second: int | None, sign: int) -> int | None:
    """The way of a sum of two, the second one times a sign."""
    if first is None or second is None:
        return None
    ways = {first, second * sign} - {0}
    return None if len(ways) > 1 else next(iter(ways), 0)


def _first(formula: str, least: int) -> int | None:
    """The least value from which on a condition holds that stays true once it holds; None where it
    holds for no value that is a size.
    """
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


def _comparison(part: ast.expr, terms: dict[str, _SumWithTests]) -> tuple[str, _Test] | None:
    """A comparison of two sums, or of a remainder with a number; None for anything else."""
    if not _is_comparison(part):
        return None
    left, right, modulus = part.left, _sum(part.comparators[0]), 1
    operator = _COMPARED.get(type(part.ops[0]))
    if operator is None:
        return None
    if isinstance(left, ast.BinOp) and isinstance(left.op, ast.Mod):
        divisor = left.right.value if isinstance(left.right, ast.Constant) else None
        if not isinstance(divisor, int) or operator not in ("==", "!=") or right.keys() > {()}:
            return None
        if not 0 <= right.get((), 0) < divisor <= _LONGEST_PERIOD:
            return None
        left, modulus = left.left, divisor
    total = _sum(left)
    for product, factor in right.items():
        total[product] = total.get(product, 0) - factor
    offset = total.pop((), 0)
    total = {product: factor for product, factor in total.items() if factor}
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
        return term.text, _Test(f"({value}) % {modulus} {operator} 0", modulus=modulus)
    return term.text, _Test(f"{value} {operator} 0", (-offset // scale,))


def _term_of(total: _Sum, terms: dict[str, _SumWithTests]) -> _SumWithTests:
    """The term of a sum; one that nobody knows is added."""
    text = _text(total)
    if text not in terms:
        low, high = _limits(total, terms)
        terms[text] = _SumWithTests(text, low, high)
    return terms[text]


def _is_comparison(part: ast.expr) -> TypeGuard[ast.Compare]:
    """True for a comparison of two formulas that are ints at all sizes."""
    return isinstance(part, ast.Compare) and len(part.ops) == 1 and not _may_be_fraction(part)


def _may_be_fraction(part: ast.expr) -> bool:
    """True for a formula that has other numbers than ints: sizes between two ints are no cell."""
    return any(
        isinstance(node, (ast.Div, ast.Pow))
        or (isinstance(node, ast.Constant) and type(node.value) is not int)
        or (isinstance(node, ast.Call) and not _is_of_ints(node))
        for node in ast.walk(part)
    )


def _is_of_ints(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id in ("min", "max", "abs", "int")


def _sum(node: ast.expr) -> _Sum:
    """A formula as a sum of products; what is neither is a symbol of its own."""
    match node:
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            return {(): number}
        case ast.Name(id=name):
            return {(name,): 1}
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return {product: -factor for product, factor in _sum(operand).items()}
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
            found = dict(_sum(left))
            for product, factor in _sum(right).items():
                signed = factor if isinstance(op, ast.Add) else -factor
                found[product] = found.get(product, 0) + signed
            return found
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            products: _Sum = {}
            for first, one in _sum(left).items():
                for second, other in _sum(right).items():
                    product = tuple(sorted((*first, *second)))
                    products[product] = products.get(product, 0) + one * other
            return products
    return {(f"({ast.unparse(node)})",): 1}


def _text(total: _Sum) -> str:
    parts: list[str] = []
    for product, factor in sorted(total.items()):
        words = "*".join([*([str(abs(factor))] if abs(factor) != 1 else []), *product])
        sign = "-" if factor < 0 else "+"
        parts.append(f"{sign} {words}" if parts else f"{'-' if factor < 0 else ''}{words}")
    return " ".join(parts)


def _limits(total: _Sum, terms: Mapping[str, _SumWithTests]) -> Range:
    """The least and the greatest value of a sum, None where nothing limits it."""
    # of 2*n - k with n from 1 to 5 and k from 0 to 3: 2*1 - 3 to 2*5 - 0
    low: int | None = 0
    high: int | None = 0
    for product, factor in total.items():
        known = [terms[name] for name in product if name in terms and name.isidentifier()]
        lows = [term.low for term in known if term.low is not None and term.low >= 0]
        highs = [term.high for term in known if term.high is not None]
        is_known = len(lows) == len(product)
        least = math.prod(lows) if is_known else None
        most = math.prod(highs) if is_known and len(highs) == len(product) else None
        ends = (least, most) if factor > 0 else (most, least)
        low = None if low is None or ends[0] is None else low + factor * ends[0]
        high = None if high is None or ends[1] is None else high + factor * ends[1]
    return low, high
