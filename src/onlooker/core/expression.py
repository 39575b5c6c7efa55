"""A size as an expression of symbols: ``8``, ``batch``, ``past_sequence + sequence``.

Expressions are kept by sympy, written as text that is also Python, and read back without evaluating code.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sympy

from .errors import UsageError

__all__ = ["Expression"]


@dataclass(frozen=True, slots=True)
class Expression:
    """A sum of symbols with integer factors, and a constant.

    >>> total = Expression.symbol("past") + Expression.symbol("sequence")
    >>> str(total), total.evaluate({"past": 5, "sequence": 3})
    ('past + sequence', 8)
    >>> str(Expression.parse("4*n - 1")), Expression.constant(8).is_constant
    ('4*n - 1', True)
    """

    value: Any

    @classmethod
    def constant(cls, value: int) -> Expression:
        """A number."""
        return cls(sympy.Integer(value))

    @classmethod
    def symbol(cls, name: str) -> Expression:
        """A symbol; sizes are integers and never negative."""
        return cls(sympy.Symbol(name, integer=True, nonnegative=True))

    @classmethod
    def parse(cls, text: str) -> Expression:
        """The expression that :meth:`__str__` wrote. No code is evaluated.

        :raises UsageError: ``bad-expression`` when the text is no sum of symbols and integers
        """
        try:
            return cls(_read(ast.parse(text, mode="eval").body))
        except (SyntaxError, ValueError) as error:
            raise UsageError(
                f"{text!r} is not a size.", slug="bad-expression", hint="Write for example '2*n + 1'."
            ) from error

    @property
    def symbols(self) -> tuple[str, ...]:
        """The names of the symbols, sorted."""
        return tuple(sorted(symbol.name for symbol in self.value.free_symbols))

    @property
    def is_constant(self) -> bool:
        """True for a number."""
        return bool(self.value.is_Integer)

    @property
    def is_symbol(self) -> bool:
        """True for a symbol alone."""
        return bool(self.value.is_Symbol)

    def evaluate(self, sizes: Mapping[str, int]) -> int:
        """The number for a size of each symbol.

        :raises UsageError: ``size-missing`` when a symbol has no size
        """
        if self.is_constant:
            return int(self.value)
        missing = [name for name in self.symbols if name not in sizes]
        if missing:
            raise UsageError(
                f"{self} needs a size for {', '.join(missing)}.",
                slug="size-missing",
                hint="Give one per symbol.",
            )
        return int(self.value.subs({symbol: sizes[symbol.name] for symbol in self.value.free_symbols}))

    def renamed(self, names: Mapping[str, str]) -> Expression:
        """The expression with other names for its symbols."""
        mapping = {s: Expression.symbol(names.get(s.name, s.name)).value for s in self.value.free_symbols}
        return Expression(self.value.xreplace(mapping))

    def replaced(self, values: Mapping[str, Expression]) -> Expression:
        """The expression with symbols replaced by expressions."""
        mapping = {s: values[s.name].value for s in self.value.free_symbols if s.name in values}
        return Expression(sympy.expand(self.value.xreplace(mapping)))

    def __add__(self, other: Expression) -> Expression:
        return Expression(self.value + other.value)

    def __sub__(self, other: Expression) -> Expression:
        return Expression(self.value - other.value)

    def __mul__(self, factor: int) -> Expression:
        return Expression(self.value * factor)

    def __str__(self) -> str:
        return str(self.value)


def _read(node: ast.expr) -> Any:
    if isinstance(node, ast.Name):
        return Expression.symbol(node.id).value
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return sympy.Integer(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_read(node.operand)
    if isinstance(node, ast.BinOp):
        left, right = _read(node.left), _read(node.right)
        if isinstance(node.op, ast.Add):
            return left + right
        if isinstance(node.op, ast.Sub):
            return left - right
        if isinstance(node.op, ast.Mult):
            return left * right
    raise ValueError(ast.dump(node))
