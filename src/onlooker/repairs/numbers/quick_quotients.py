"""Quotients of sizes whose common factor is divided out term by term.

``view(batch, -1, classes, height, width)`` divides the number of elements by a product of sizes. torch
finds the factor that both have, and has sympy simplify what is left. The sizes behind a few convolutions
are floors of floors, of which one such call takes seconds: most of the time of the trace of a detector.

But the factor is one of every term. So ``6*h*w*b // (h*w*b)`` is 6 by a division of each term, which
sympy does while it builds the quotient, and there is nothing left to simplify. Where a term keeps a
denominator, torch divides as it does.

Upstream: https://github.com/pytorch/pytorch/blob/v2.13.0/torch/utils/_sympy/functions.py,
``FloorDiv.eval``. It may go when that calls ``sympy.simplify`` no more.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import sympy

from ...patches.swap import swapped
from ...torch_internals.sizes import FloorDiv, simple_floordiv_gcd
from ..repair import Repair

__all__ = ["QUICK_QUOTIENTS", "quotients_made_quickly"]


@contextlib.contextmanager
def quotients_made_quickly() -> Iterator[None]:
    """Inside the block a factor that both sides of a quotient have is divided out of each term."""
    divide = FloorDiv.eval

    def quickly(_: Any, base: Any, divisor: Any) -> Any:
        reduced = _reduced(base, divisor)
        return divide(base, divisor) if reduced is None else FloorDiv(*reduced)

    with swapped(FloorDiv, "eval", classmethod(quickly)):
        yield


def _reduced(base: Any, divisor: Any) -> tuple[Any, Any] | None:
    """Returns both sides without the factor that they share; None where they share none, or torch
    needs no simplification to find the quotient.
    """
    if base == divisor or isinstance(base, FloorDiv):
        return None
    if isinstance(base, sympy.Number) or isinstance(divisor, sympy.Number):
        return None
    factor = simple_floordiv_gcd(base, divisor)
    if factor == 1:
        return None
    sides = _divided(base, factor), _divided(divisor, factor)
    return None if None in sides else sides


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
    " left to simplify.",
    until="tests/repairs/test_repeated_operators.py::test_heads_of_a_detector_need_no_simplification",
    link="https://github.com/pytorch/pytorch/blob/v2.13.0/torch/utils/_sympy/functions.py",
    always=True,
    block=lambda _: quotients_made_quickly(),
)
