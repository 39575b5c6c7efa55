"""Proofs about sizes that are computed with floor divisions and remainders.

A size is often a sum of products with ``//`` and ``%`` by numbers: ``4 * ((n + 3) // 4)``. Such an
expression is a quasi-polynomial: where every symbol moves in steps of a period, it is a polynomial
of a known degree. A polynomial of degree d is known by d + 1 values, so finitely many values prove
an equation for all sizes. An inequality is proven where the forward differences of all polynomials
are not negative: each then grows from its first value on.

Is ``4 * ((n + 3) // 4) >= n`` for all ``n >= 2``? The difference of both sides has period 4 (from ``// 4``)
and degree 1, so that 4 * (1 + 1) = 8 points say all of it:

    n                2  3  4  5     the first value of each remainder by 4
    difference       2  1  0  3
    n                6  7  8  9     the second one
    difference       2  1  0  3
    second - first   0  0  0  0     the forward difference

Nothing in the first row is below 0, and nothing falls: the bound is proven. That both sides are equal is
refuted by the same rows. With the fact ``n % 4 == 0`` the column of 4 and 8 alone is left. It is 0
throughout, and so the equation is proven for these sizes.

Source: Newton's forward difference formula; quasi-polynomials as in Stanley, Enumerative
Combinatorics 1, section 4.4.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import sympy
import torch
from sympy.core.relational import Relational

from ..core.sizes.floor import Floor
from ..torch_internals.sizes import FloorDiv, Max, Min, Mod, PythonMod

__all__ = ["SizeProofs", "is_fact", "is_number", "is_periodic", "lower_bounds"]

_DIVISIONS = (FloorDiv, Floor)
_REMAINDERS = (Mod, PythonMod)
_MAXIMA, _MINIMA = (Max, sympy.Max), (Min, sympy.Min)
#: the most points at which an expression is evaluated for one proof, and the greatest degree
_MOST_POINTS, _HIGHEST_DEGREE = 100_000, 4
#: the largest number in an expression that is computed at these points, in 64 bits
_LARGEST = 2**31
#: in a sum with more maxima and minima no part is put in their place: each one doubles the proofs
_MOST_EXTREMES = 3
#: where expressions are evaluated to find those that may be equal: residues of many periods, in no
#: simple relation
_PROBES = (1_009, 2_477, 5_040, 7_919)
#: so many symbols that are no sizes of the plan are evaluated each at other numbers; a product of
#: three of them is no overflow
_MOST_FACTORS = 101

#: per symbol the degree of an expression in it, and the period
_Form = Mapping[Any, tuple[int, int]]


class SizeProofs:
    """Proves equations and bounds for all sizes of a plan: symbols are integers from ``lows`` on,
    and satisfy ``facts``.

    Of the facts those are used that hang on remainders alone, ``n % 4 == 0``, least sizes,
    ``n >= 8``, and expressions that are a number, ``a*b == 96``. The others may be left out, since
    a proof without them says more.

    >>> n = sympy.Symbol("n", integer=True, nonnegative=True)
    >>> proofs = SizeProofs({"n": 2}, [sympy.Eq(PythonMod(n, 4), 0)])
    >>> proofs.same(n), proofs.same(4 * FloorDiv(n, 4)), proofs.always(n > 2), proofs.always(n > 4)
    (n, n, True, False)
    """

    def __init__(self, lows: Mapping[str, int], facts: Iterable[Any] = ()) -> None:
        facts = list(facts)
        self._lows = dict(lows)
        for fact in facts:
            for symbol, low in lower_bounds(fact).items():
                self._lows[symbol.name] = max(low, self._lows.get(symbol.name, 0))
        self._facts = [fact for fact in facts if is_periodic(fact)]
        self._numbers = dict(number for fact in facts for number in _numbers(fact))
        self._known: dict[Any, Any] = {}
        self._alike: dict[tuple[int, ...], list[Any]] = {}
        self._factors: dict[Any, int] = {}
        self._simple: dict[Any, Any] = {}
        self._bounds: dict[tuple[Any, int], bool] = {}

    def same(self, value: Any) -> Any:
        """The first expression that was asked about and is equal to this one; a number for a
        constant.
        """
        value = sympy.sympify(value)
        if value not in self._known:
            self._known[value] = self._first_equal(value)
        return self._known[value]

    def _first_equal(self, value: Any) -> Any:
        simple = self.simplified(sympy.expand(value))
        if simple.is_number or simple in self._known:
            return self._known.get(simple, simple)
        probe = self._probe(simple)
        if probe is None:
            return self._known.setdefault(simple, simple)
        if len(set(probe)) == 1 and self.equal(simple, sympy.Integer(probe[0])):
            return sympy.Integer(probe[0])
        alike = self._alike.setdefault(probe, [])
        for other in alike:
            if self.equal(simple, other):
                return other
        alike.append(simple)
        return self._known.setdefault(simple, simple)

    def _probe(self, value: Any) -> tuple[int, ...] | None:
        """The expression at a few sizes that satisfy the facts; None where it cannot be
        evaluated.

        A number that is read from a tensor is the same in all expressions, and no two of them are
        equal: a mixture of experts has one for the rows of each expert, some thousands in all, and
        their expressions are not compared with each other.
        """
        symbols = sorted(value.free_symbols, key=str)
        form = _form_of(value)
        if form is None:
            return None
        facts = [fact for fact in self._facts if fact.free_symbols <= set(symbols)]
        factors = self._factors_of(symbols)
        found = []
        for probe in _PROBES:
            steps = torch.arange(probe, probe + 512, dtype=torch.int64, device="cpu")
            points = {symbol: steps * factor for symbol, factor in factors.items()}
            valid = torch.ones_like(steps, dtype=torch.bool)
            for fact in facts:
                valid = valid & _evaluated(fact, points)
            if not valid.any():
                return None
            first = int(valid.nonzero()[0])
            found.append(
                int(_evaluated(value, {symbol: point[first] for symbol, point in points.items()}))
            )
        return tuple(found)

    def _factors_of(self, symbols: Sequence[Any]) -> dict[Any, int]:
        """An odd number for each symbol of an expression, in which its points are to the others'."""
        sizes = [symbol for symbol in symbols if symbol.name in self._lows]
        found = {symbol: 2 * place + 1 for place, symbol in enumerate(sizes)}
        for symbol in symbols:
            if symbol not in found:
                place = self._factors.setdefault(symbol, len(self._factors))
                found[symbol] = 2 * (len(self._lows) + place % _MOST_FACTORS) + 1
        return found

    def equal(self, first: Any, second: Any) -> bool:
        """True where two expressions are proven equal for all sizes; False where that is
        unknown.
        """
        classes = self._classes(first - second, from_low=False)
        return classes is not None and not bool(classes.any())

    def always(self, condition: Any) -> bool:
        """True where a condition is proven for all sizes; False where that is unknown."""
        if condition in (True, sympy.true):
            return True
        if isinstance(condition, sympy.And):
            return all(map(self.always, condition.args))
        if isinstance(condition, sympy.Or):
            return any(map(self.always, condition.args))
        if not isinstance(condition, Relational):
            return False
        difference = self.simplified(
            sympy.expand(self._with_numbers(condition.lhs - condition.rhs))
        )
        if isinstance(condition, sympy.Eq):
            return self.equal(difference, sympy.Integer(0))
        if isinstance(condition, sympy.Ne):
            return self._is_at_least(difference, 1) or self._is_at_least(-difference, 1)
        if isinstance(condition, (sympy.LessThan, sympy.StrictLessThan)):
            difference = -difference
        strict = isinstance(condition, (sympy.StrictLessThan, sympy.StrictGreaterThan))
        return self._is_at_least(difference, 1 if strict else 0)

    def _with_numbers(self, value: Any) -> Any:
        """The expression with numbers for what the facts say is one, also within products."""
        for known, number in self._numbers.items():
            value = value.subs(known, number)
        return value

    def never(self, condition: Any) -> bool:
        """True where a condition is proven to fail for all sizes."""
        return self.always(sympy.Not(condition))

    def _is_at_least(self, value: Any, bound: int) -> bool:
        key = value, bound
        if key not in self._bounds:
            self._bounds[key] = self._is_bounded(value, bound)
        return self._bounds[key]

    def _is_bounded(self, value: Any, bound: int) -> bool:
        classes = self._classes(value, from_low=True)
        if classes is None:
            is_natural = bound <= 0 and self._is_natural(value)
            return is_natural or self._is_bounded_by_parts(value, bound)
        first, *others = classes
        return bool((first >= bound).all()) and all(bool((other >= 0).all()) for other in others)

    def _is_bounded_by_parts(self, value: Any, bound: int) -> bool:
        """True for a sum with a maximum or a minimum, where what it may be in its place proves the bound:
        ``max(2048, n) - n`` is at least ``n - n``.
        """
        if not 0 < len(value.atoms(*_MAXIMA, *_MINIMA)) <= _MOST_EXTREMES:
            return False
        for term in sympy.Add.make_args(value):
            factor, extreme = term.as_coeff_Mul()
            if isinstance(extreme, (*_MAXIMA, *_MINIMA)):
                is_one_enough = isinstance(extreme, _MAXIMA) == (factor > 0)
                found = (
                    self._is_at_least(sympy.expand(value - term + factor * part), bound)
                    for part in extreme.args
                )
                return any(found) if is_one_enough else all(found)
        return False

    def _is_natural(self, value: Any) -> bool:
        """True for an expression that is made of numbers of at least 0 alone, by operations that
        keep them there.
        """
        if value.is_Integer:
            return bool(value >= 0)
        if value.is_Symbol:
            return self._lows.get(value.name, 0) >= 0
        if isinstance(value, _REMAINDERS):
            return self._is_at_least(value.args[1], 0)
        if isinstance(value, _MAXIMA):
            return any(self._is_at_least(arg, 0) for arg in value.args)
        if value.is_Add or value.is_Mul or isinstance(value, (*_DIVISIONS, *_MINIMA)):
            return all(self._is_at_least(arg, 0) for arg in value.args)
        return bool(
            value.is_Pow
            and value.exp.is_Integer
            and value.exp > 0
            and self._is_at_least(value.base, 0)
        )

    def _classes(self, value: Any, *, from_low: bool) -> torch.Tensor | None:
        """The forward differences of the polynomials of an expression: the first row has their
        first values.

        One column per residue class that the facts allow; None for what is no quasi-polynomial, or
        too large.
        """
        form = _form_of(value)
        if form is None:
            return None
        symbols = sorted(form, key=str)
        facts = [fact for fact in self._facts if fact.free_symbols <= set(symbols)]
        periods = {symbol: form[symbol][1] for symbol in symbols}
        for fact in facts:
            for symbol, (_, period) in (_form_of(fact.lhs - fact.rhs) or {}).items():
                periods[symbol] = math.lcm(periods[symbol], period)
        n_points = math.prod(periods[symbol] * (form[symbol][0] + 1) for symbol in symbols)
        if any(
            abs(number) > _LARGEST for one in (value, *facts) for number in one.atoms(sympy.Integer)
        ):
            return None
        if n_points > _MOST_POINTS or any(degree > _HIGHEST_DEGREE for degree, _ in form.values()):
            return None
        points: dict[Any, torch.Tensor] = {}
        shape: list[int] = []
        for place, symbol in enumerate(symbols):
            count = periods[symbol] * (form[symbol][0] + 1)
            low = self._lows.get(symbol.name, 0) if from_low else 0
            line = torch.arange(low, low + count, dtype=torch.int64, device="cpu")
            points[symbol] = line.reshape([-1 if i == place else 1 for i in range(len(symbols))])
            shape += [form[symbol][0] + 1, periods[symbol]]
        whole = [steps * period for steps, period in zip(shape[::2], shape[1::2], strict=True)]
        values = _spread(_evaluated(value, points), whole).reshape(shape)
        valid = torch.tensor(True, device="cpu")
        for fact in facts:
            valid = valid & _spread(_evaluated(fact, points), whole)
        allowed = _spread(valid, whole).reshape(shape)
        for place in range(len(symbols)):
            values = _forward_differences(values, 2 * place)
        order = [*range(0, len(shape), 2), *range(1, len(shape), 2)]
        n_rows = math.prod(shape[::2])
        rows = values.permute(order).reshape(n_rows, -1)
        return rows[:, allowed.permute(order).reshape(n_rows, -1)[0]]

    def simplified(self, value: Any) -> Any:
        """The expression without divisions by an expression that goes into it, and without known
        maxima.
        """
        if not value.args or not value.free_symbols:
            return value
        if value not in self._simple:
            self._simple[value] = self._simplified(value)
        return self._simple[value]

    def _simplified(self, value: Any) -> Any:
        args = [self.simplified(arg) for arg in value.args]
        if isinstance(value, (*_DIVISIONS, *_REMAINDERS)):
            found = self._quotient(type(value), *args)
            if found is not None:
                return found
            if not isinstance(value, (FloorDiv, PythonMod)):
                return FloorDiv(*args) if isinstance(value, _DIVISIONS) else PythonMod(*args)
        if isinstance(value, (*_MAXIMA, *_MINIMA)):
            return self._extreme(value, args)
        return value if args == list(value.args) else value.func(*args)

    def _quotient(self, kind: Any, numerator: Any, divisor: Any) -> Any:
        """The quotient, or the remainder, where the division is not needed; else None."""
        is_division = kind in _DIVISIONS
        if numerator.is_Integer and divisor.is_Integer and divisor != 0:
            return numerator // divisor if is_division else numerator % divisor
        if not divisor.is_Integer and self._is_at_least(divisor, 1):
            probes = [self._probe(side) for side in (numerator, divisor)]
            if probes[0] and probes[1] and divisor.free_symbols == numerator.free_symbols:
                quotient = sympy.Integer(probes[0][0] // probes[1][0])
                rest = sympy.expand(numerator - quotient * divisor)
                if self.equal(numerator, quotient * divisor):
                    return quotient if is_division else sympy.Integer(0)
                if self._is_at_least(rest, 0) and self._is_at_least(divisor - rest, 1):
                    return quotient if is_division else rest
            above, below = sympy.fraction(sympy.together(sympy.cancel(numerator / divisor)))
            common = sympy.cancel(divisor / below)
            if below != divisor and _form_of(above) is not None and self._is_at_least(common, 1):
                if below == 1:
                    return above if is_division else sympy.Integer(0)
                left = self._quotient(kind, above, below)
                if left is None:
                    left = FloorDiv(above, below) if is_division else PythonMod(above, below)
                return left if is_division else common * left
        return None

    def _extreme(self, value: Any, args: Sequence[Any]) -> Any:
        sign = 1 if isinstance(value, _MAXIMA) else -1
        for one in args:
            if all(one is other or self._is_at_least(sign * (one - other), 0) for other in args):
                return one
        return value if args == list(value.args) else value.func(*args)


def lower_bounds(condition: Any) -> dict[Any, int]:
    """The least sizes of symbols that a condition demands: ``min(n // 4, m) > 4`` those of ``n``
    and of ``m``.
    """
    if not isinstance(condition, Relational):
        return {}
    if isinstance(condition, (sympy.LessThan, sympy.StrictLessThan)):
        condition = condition.reversed
    if isinstance(condition, sympy.Eq) and condition.rhs.is_Integer:
        condition = sympy.Ge(condition.lhs, condition.rhs, evaluate=False)
    if (
        not isinstance(condition, (sympy.GreaterThan, sympy.StrictGreaterThan))
        or not condition.rhs.is_Integer
    ):
        return {}
    return _least(
        condition.lhs, int(condition.rhs) + isinstance(condition, sympy.StrictGreaterThan)
    )


def _least(value: Any, bound: int) -> dict[Any, int]:
    """The least sizes at which an expression of one symbol, or a minimum of such, can reach a
    bound.
    """
    if value.is_Symbol:
        return {value: bound}
    if isinstance(value, _MINIMA):
        found: dict[Any, int] = {}
        for arg in value.args:
            for symbol, low in _least(arg, bound).items():
                found[symbol] = max(low, found.get(symbol, low))
        return found
    if isinstance(value, _DIVISIONS) and value.args[1].is_Integer and value.args[1] > 0:
        return _least(value.args[0], bound * int(value.args[1]))
    number, rest = value.as_coeff_Add()
    if number.is_Integer and number != 0:
        return _least(rest, bound - int(number))
    factor, rest = value.as_coeff_Mul()
    if factor.is_Integer and factor > 1:
        return _least(rest, -(-bound // int(factor)))
    return {}


def is_fact(condition: Any) -> bool:
    """True for a condition that proofs can make use of."""
    return is_periodic(condition) or bool(lower_bounds(condition)) or is_number(condition)


def is_number(condition: Any) -> bool:
    """True for an equation that makes an expression a number: ``a*b == 96``."""
    return bool(_numbers(condition))


def _numbers(fact: Any) -> list[tuple[Any, Any]]:
    """An expression that is a number by an equation."""
    if not isinstance(fact, sympy.Eq):
        return []
    value, number = fact.args if fact.rhs.is_Integer else reversed(fact.args)
    return [(value, number)] if number.is_Integer and value.free_symbols else []


def is_periodic(fact: Any) -> bool:
    """True for an equation, or its opposite, that hangs on remainders of sizes by numbers alone."""
    if not isinstance(fact, Relational):
        return False
    form = _form_of(fact.lhs - fact.rhs)
    return form is not None and bool(form) and all(degree == 0 for degree, _ in form.values())


def _form_of(value: Any) -> _Form | None:
    """Degree and period of a quasi-polynomial in each symbol; None for other expressions."""
    form = _quasi(value)
    return (
        None
        if form is None
        else {symbol: (term.degree, term.period) for symbol, term in form.items()}
    )


class _SymbolTerm(NamedTuple):
    """The dependence of an expression on one symbol. ``slope`` is what it grows by in the mean,
    where that is one number.
    """

    degree: int
    period: int
    slope: Fraction | None


def _quasi(value: Any) -> Mapping[Any, _SymbolTerm] | None:
    if value.is_Integer:
        return {}
    if value.is_Symbol:
        return {value: _SymbolTerm(1, 1, Fraction(1))}
    if value.is_Add:
        return _sum([_quasi(arg) for arg in value.args])
    if value.is_Mul:
        return _product([_quasi(arg) for arg in value.args], value)
    if value.is_Pow and value.exp.is_Integer and value.exp > 0:
        return _product([_quasi(value.base)] * int(value.exp), value)
    if (
        isinstance(value, (*_DIVISIONS, *_REMAINDERS))
        and value.args[1].is_Integer
        and value.args[1] > 0
    ):
        form = _quasi(value.args[0])
        return (
            None
            if form is None
            else _divided(form, int(value.args[1]), is_division=isinstance(value, _DIVISIONS))
        )
    return None


def _divided(
    form: Mapping[Any, _SymbolTerm], divisor: int, *, is_division: bool
) -> Mapping[Any, _SymbolTerm]:
    """The quotient, or the remainder.

    Over one period a term with a slope grows by a fixed number; the remainder is back after as many
    periods as bring that to a multiple of the divisor. Without a slope, a polynomial of degree d is
    back after ``divisor * d!`` periods.
    """
    total = math.factorial(sum(term.degree for term in form.values()))
    found = {}
    for symbol, (degree, period, slope) in form.items():
        if slope is not None:
            period *= divisor // math.gcd(int(slope * period), divisor)
            slope = slope / divisor if is_division else Fraction(0)
        else:
            period *= divisor * total
        found[symbol] = _SymbolTerm(
            degree if is_division else 0, period, slope if is_division else Fraction(0)
        )
    return found


def _sum(forms: Sequence[Mapping[Any, _SymbolTerm] | None]) -> Mapping[Any, _SymbolTerm] | None:
    found: dict[Any, _SymbolTerm] = {}
    for form in forms:
        if form is None:
            return None
        for symbol, term in form.items():
            had = found.get(symbol, _SymbolTerm(0, 1, Fraction(0)))
            slope = None if had.slope is None or term.slope is None else had.slope + term.slope
            found[symbol] = _SymbolTerm(
                max(had.degree, term.degree), math.lcm(had.period, term.period), slope
            )
    return found


def _product(
    forms: Sequence[Mapping[Any, _SymbolTerm] | None], value: Any
) -> Mapping[Any, _SymbolTerm] | None:
    found: dict[Any, _SymbolTerm] = {}
    factor = math.prod(int(arg) for arg in value.args if arg.is_Integer) if value.is_Mul else 1
    is_plain = sum(bool(form) for form in forms) == 1
    for form in forms:
        if form is None:
            return None
        for symbol, term in form.items():
            had = found.get(symbol, _SymbolTerm(0, 1, None))
            slope = term.slope * factor if is_plain and term.slope is not None else None
            found[symbol] = _SymbolTerm(
                had.degree + term.degree, math.lcm(had.period, term.period), slope
            )
    return found


def _evaluated(value: Any, points: Mapping[Any, torch.Tensor]) -> Any:
    """An expression, or a relation of expressions, at many sizes at once."""
    if isinstance(value, Relational):
        difference = _evaluated(value.lhs - value.rhs, points)
        return _COMPARED[value.rel_op](difference)
    if value.is_Integer:
        return torch.tensor(int(value), dtype=torch.int64, device="cpu")
    if value.is_Symbol:
        return points[value]
    if value.is_Pow:
        return _evaluated(value.base, points) ** int(value.exp)
    args = [_evaluated(arg, points) for arg in value.args]
    if isinstance(value, _DIVISIONS):
        return torch.div(args[0], args[1], rounding_mode="floor")
    if isinstance(value, _REMAINDERS):
        return torch.remainder(args[0], args[1])
    total = args[0]
    for arg in args[1:]:
        total = total * arg if value.is_Mul else total + arg
    return total


_COMPARED: Mapping[str, Any] = {
    "==": lambda difference: difference == 0,
    "!=": lambda difference: difference != 0,
    ">=": lambda difference: difference >= 0,
    ">": lambda difference: difference > 0,
    "<=": lambda difference: difference <= 0,
    "<": lambda difference: difference < 0,
}


def _spread(values: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    return torch.broadcast_to(values, list(shape))


def _forward_differences(values: torch.Tensor, dim: int) -> torch.Tensor:
    """Newton's coefficients along one axis: the value, its first difference, its second one, and
    so on.
    """
    rows = []
    for _ in range(values.shape[dim]):
        rows.append(values.narrow(dim, 0, 1))
        values = values.diff(dim=dim)
    return torch.cat(rows, dim)
