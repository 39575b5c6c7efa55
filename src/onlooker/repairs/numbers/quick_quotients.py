"""Quotients of sizes whose common factor is divided out without a simplification.

``view(batch, -1, classes, height, width)`` divides the number of elements by a product of sizes. torch
finds the factor that both have, and has sympy simplify what is left. The sizes behind an image that is
scaled and a few convolutions are floors of floors, of which one such call takes seconds: most of the time
of the trace of a detector.

But nothing is left to simplify where both sides are products, or the factor is one of every term. With
``h`` for a floor of floors::

    (3*h + 3) // (h + 1)                  3*(h + 1) and 1*(h + 1)          3
    4*(2*h + 2)*w // 8                    8*(h + 1)*w and 8                (h + 1)*w
    (2*a*b + 4*a) // (2*a*c)              2*a in each term                 (b + 2) // c

Where a term keeps a denominator, torch divides as it does.

The remainder of a size by 0.5, 0.25 and so on is 0 for every size: ``height % 0.5``, which a model asks before it
scales an image. torch computes the range of the remainder as if 0.5 were an int, and raises an error, since that range
ends before it begins.

Upstream: https://github.com/pytorch/pytorch/blob/v2.13.0/torch/utils/_sympy/functions.py,
``FloorDiv.eval``. It may go when that calls ``sympy.simplify`` no more.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import sympy

from ...patches.swap import swapped
from ...torch_internals.sizes import FloorDiv, Mod, ToFloat, simple_floordiv_gcd
from ..repair import Repair

__all__ = ["QUICK_QUOTIENTS", "quotients_made_quickly"]


@contextlib.contextmanager
def quotients_made_quickly() -> Iterator[None]:
    """Inside the block a factor that both sides of a quotient have is divided out at once, and the remainder of a size
    by 0.5, 0.25 and so on is 0.
    """
    divide, remainder = FloorDiv.eval, Mod.eval

    def quickly(_: Any, base: Any, divisor: Any) -> Any:
        reduced = _reduced(base, divisor)
        return divide(base, divisor) if reduced is None else FloorDiv(*reduced)

    def of_a_size(_: Any, base: Any, divisor: Any) -> Any:
        if isinstance(base, ToFloat) and _divides_one(divisor):
            return sympy.Float(0.0)
        return remainder(base, divisor)  # type: ignore[no-untyped-call]

    with (
        swapped(FloorDiv, "eval", classmethod(quickly)),
        swapped(Mod, "eval", classmethod(of_a_size)),
    ):
        yield


def _divides_one(divisor: Any) -> bool:
    """True for 0.5, 0.25 and so on: 1 is a multiple of them, and floats hold them exactly."""
    is_fraction = bool(divisor.is_Float) and 0 < divisor < 1
    return is_fraction and math.frexp(float(divisor))[0] == 0.5


def _reduced(base: Any, divisor: Any) -> tuple[Any, Any] | None:
    """Returns both sides without the factor that they share; None where they share none, or torch
    needs no simplification to find the quotient.
    """
    if base == divisor or isinstance(base, (FloorDiv, sympy.Number)):
        return None
    of_products = _without_common_factors(base, divisor)
    if of_products is not None or isinstance(divisor, sympy.Number):
        return of_products
    factor = simple_floordiv_gcd(base, divisor)
    if factor == 1:
        return None
    sides = _divided(base, factor), _divided(divisor, factor)
    return None if None in sides else sides


def _without_common_factors(base: Any, divisor: Any) -> tuple[Any, Any] | None:
    """Returns two products without the factors that both have; None where they have none.

    >>> a, b = sympy.symbols("a b", integer=True, positive=True)
    >>> _without_common_factors(4 * (2 * a + 2) * b, sympy.Integer(8))
    (b*(a + 1), 1)
    """
    above, below = _factors(base), _factors(divisor)
    if above is None or below is None:
        return None
    (number, factors), (other_number, other_factors) = above, below
    common, common_number = factors & other_factors, math.gcd(number, other_number)
    if not common and common_number == 1:
        return None
    return (
        sympy.Mul(number // common_number, *(factors - common).elements()),
        sympy.Mul(other_number // common_number, *(other_factors - common).elements()),
    )


def _factors(value: Any) -> tuple[int, Counter[Any]] | None:
    """Returns a product as a number and its other factors, of which sums have no common number;
    None for one with a fraction, and for 0.
    """
    number, factors = sympy.Integer(1), Counter[Any]()
    for part in sympy.Mul.make_args(value):
        if part.is_Rational:
            number *= part
        elif part.is_Add:
            content, rest = part.primitive()
            number *= content
            factors[rest] += 1
        elif _is_fraction(part):
            return None
        else:
            factors[part] += 1
    return (int(number), factors) if number.is_Integer and number != 0 else None


def _divided(value: Any, factor: Any) -> Any:
    """Returns the sum of the quotients of all terms; None where one of them is no product of ints.

    >>> a, b = sympy.symbols("a b", integer=True, positive=True)
    >>> _divided(2 * a * b + 4 * a, 2 * a), _divided(a + b, a)
    (b + 2, None)
    """
    terms = [term / factor for term in sympy.Add.make_args(value)]
    parts = (part for term in terms for part in sympy.Mul.make_args(term))
    if any(map(_is_fraction, parts)):
        return None
    return sympy.Add(*terms)


def _is_fraction(value: Any) -> bool:
    if value.is_Rational:
        return not value.is_Integer
    return bool(value.is_Pow and value.exp.could_extract_minus_sign())


QUICK_QUOTIENTS = Repair(
    "quick quotients",
    "torch has sympy simplify a quotient of sizes after it has divided out what both sides share. Of"
    " floors of floors, the sizes behind some convolutions, that takes seconds each, and there is nothing"
    " left to simplify. The remainder of a size by 0.5 is 0, where torch raises an error.",
    until="tests/repairs/test_repeated_operators.py::test_heads_of_a_detector_need_no_simplification",
    link="https://github.com/pytorch/pytorch/blob/v2.13.0/torch/utils/_sympy/functions.py",
    always=True,
    block=lambda _: quotients_made_quickly(),
)
