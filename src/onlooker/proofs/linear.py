"""Linear conditions on sizes, ``past + sequence <= 128``: what follows from what.

Bounds of a model are of this form. Given that ``past + sequence <= 128`` and that ``sequence`` is
at least 1, ``past <= 127`` follows: the difference of the two left sides, ``-sequence``, is at most
``-1``, and that is the difference of the right sides, ``127 - 128``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import sympy
from sympy.core.relational import Relational

from ..core.plan import Plan
from ..core.sizes.expression import Sizes
from ..core.sizes.floor import Floor
from ..torch_internals.sizes import FloorDiv

__all__ = ["Limits", "Linear", "limits_in_plan"]

_DIVISIONS = (FloorDiv, Floor)
#: per symbol the least and the greatest size; None where nothing limits it
Limits = Mapping[str, tuple[int, int | None]]


@dataclass(frozen=True, slots=True)
class Linear:
    """The sum of ``parts``, each a symbol and how often it counts, is at most ``most``.

    >>> n, k = sympy.symbols("n k", integer=True, nonnegative=True)
    >>> Linear.of(2 * n < 257)
    Linear(parts=(('n', 1),), most=128)
    >>> Linear.of(k + n <= 128).follows_from([], {"k": (0, 64), "n": (1, 64)})
    True
    >>> Linear.of(FloorDiv(n - 1, 4) + 1 <= 7)
    Linear(parts=(('n', 1),), most=28)
    """

    parts: tuple[tuple[str, int], ...]
    most: int

    @classmethod
    def of(cls, condition: Any) -> Linear | None:
        """The condition in this form; None where it is another one, or has no symbols."""
        kinds = (
            sympy.LessThan,
            sympy.StrictLessThan,
            sympy.GreaterThan,
            sympy.StrictGreaterThan,
        )
        if not isinstance(condition, Relational) or not isinstance(condition, kinds):
            return None
        low, high = condition.lhs, condition.rhs
        if isinstance(condition, (sympy.GreaterThan, sympy.StrictGreaterThan)):
            low, high = high, low
        is_strict = isinstance(condition, (sympy.StrictLessThan, sympy.StrictGreaterThan))
        difference = _without_division(sympy.expand(low - high) + int(is_strict))
        symbols = sorted(difference.free_symbols, key=str)
        if not symbols or not difference.is_polynomial(*symbols):
            return None
        polynomial = sympy.Poly(difference, *symbols)
        if polynomial.total_degree() > 1 or not all(c.is_Integer for c in polynomial.coeffs()):
            return None
        parts = {s.name: int(polynomial.coeff_monomial(s)) for s in symbols}
        return cls.made(parts, -int(polynomial.coeff_monomial(1)))

    @classmethod
    def made(cls, parts: Mapping[str, int], most: int) -> Linear | None:
        """The condition of these parts, in least terms; None where no symbol counts."""
        counting = {name: count for name, count in sorted(parts.items()) if count}
        if not counting:
            return None
        common = math.gcd(*counting.values())
        return cls(tuple((name, n // common) for name, n in counting.items()), most // common)

    @property
    def is_upper(self) -> bool:
        """True where some size can be too large."""
        return any(count > 0 for _, count in self.parts)

    def holds(self, sizes: Sizes) -> bool:
        """True for sizes that satisfy the condition."""
        return sum(count * sizes[name] for name, count in self.parts) <= self.most

    def greatest(self, name: str, others: Sizes) -> int | None:
        """The greatest size of a symbol beside the sizes of others; None where it has none."""
        counts = dict(self.parts)
        count = counts.pop(name, 0)
        if count <= 0:
            return None
        rest = sum(number * others[other] for other, number in counts.items())
        return (self.most - rest) // count

    def follows_from(self, facts: Iterable[Linear], limits: Limits) -> bool:
        """True where the condition holds for all sizes within limits that satisfy one of the facts;
        False where that is not known.
        """
        return self._holds_within(limits) or any(
            _difference(self, fact)._holds_within(limits) for fact in facts
        )

    def _holds_within(self, limits: Limits) -> bool:
        greatest = 0
        for name, count in self.parts:
            low, high = limits.get(name, (0, None))
            end = low if count < 0 else high
            if end is None:
                return False
            greatest += count * end
        return greatest <= self.most

    def condition(self, symbols: Mapping[str, Any]) -> Any:
        """The condition of sympy: what counts against the bound stands on its right side.

        >>> n, k = sympy.symbols("n k", integer=True, nonnegative=True)
        >>> Linear((("k", -1), ("n", 2)), 3).condition({"k": k, "n": n})
        2*n <= k + 3
        """
        left, right = sympy.Integer(0), sympy.Integer(self.most)
        for name, count in self.parts:
            if count > 0:
                left += count * symbols[name]
            else:
                right -= count * symbols[name]
        return sympy.LessThan(left, right, evaluate=False)


def _without_division(value: Any) -> Any:
    """Returns an expression that is at most 0 exactly where a value is, if that has one division by
    a number: ``n//4 - 6 <= 0`` where ``n - 27 <= 0``.
    """
    number, rest = value.as_coeff_Add()
    sign, division = rest.as_coeff_Mul()
    is_division = isinstance(division, _DIVISIONS) and number.is_Integer and abs(sign) == 1
    if not is_division or not division.args[1].is_Integer or division.args[1] < 1:
        return value
    numerator, divisor = division.args
    if sign > 0:
        return sympy.expand(numerator - divisor * (1 - number) + 1)
    return sympy.expand(divisor * number - numerator)


def _difference(one: Linear, other: Linear) -> Linear:
    """Returns the condition that is left of one condition where the other one holds."""
    counts = dict(one.parts)
    for name, count in other.parts:
        counts[name] = counts.get(name, 0) - count
    kept = tuple((name, count) for name, count in counts.items() if count)
    return Linear(kept, one.most - other.most)


def limits_in_plan(plan: Plan, *, least: int | None = None) -> Limits:
    """The least and the greatest size of each symbol of a plan, or of those that are ``least`` or
    more.
    """
    return {
        symbol.name: (symbol.low if least is None else max(symbol.low, least), symbol.high)
        for symbol in plan.symbols
    }
