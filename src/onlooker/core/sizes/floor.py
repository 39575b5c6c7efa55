"""Floor division for sympy, and expressions as text that Python reads.

sympy has ``floor`` of a fraction; written as ``//`` of integers an expression stays as it was
found, and is Python.
"""

from __future__ import annotations

from typing import Any

import sympy
from sympy.printing.precedence import PRECEDENCE
from sympy.printing.str import StrPrinter

__all__ = ["Floor", "written"]


class Floor(sympy.Function):  # type: ignore[misc]  # sympy has no types
    """``numerator // divisor`` for a positive integer divisor, rounded down as Python does."""

    nargs = (2,)
    is_integer = True
    precedence = (
        PRECEDENCE["Add"] + PRECEDENCE["Mul"]
    ) // 2  # in parentheses inside a product, bare inside a sum

    @classmethod
    def eval(cls, numerator: Any, divisor: Any) -> Any:
        """A number for numbers, and the numerator itself for a divisor of 1."""
        if divisor == 1:
            return numerator
        if numerator.is_Integer and divisor.is_Integer:
            return numerator // divisor
        return None


class _Python(StrPrinter):  # type: ignore[misc]  # sympy has no types
    """Writes what Python reads: ``min`` for ``Min``, ``//`` for :class:`Floor`."""

    def _print_Floor(self, expression: Any) -> str:
        numerator, divisor = expression.args
        level = PRECEDENCE["Mul"]
        return f"{self.parenthesize(numerator, level)}//{self.parenthesize(divisor, level)}"

    def _print_Min(self, expression: Any) -> str:
        terms = sorted(
            map(self._print, expression.args), key=lambda text: (text.lstrip("-").isdigit(), text)
        )
        return f"min({', '.join(terms)})"


_PRINTER = _Python()


def written(value: Any) -> str:
    """The text of an expression of sympy.

    >>> n = sympy.Symbol("n", integer=True, nonnegative=True)
    >>> written(2 * Floor(n - 3, sympy.Integer(2)) + sympy.Min(n, 7))
    '2*((n - 3)//2) + min(n, 7)'
    """
    return str(_PRINTER.doprint(value))
