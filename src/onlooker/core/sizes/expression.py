"""A size as an expression of symbols: ``8``, ``past + sequence``, ``min(past, 15)``,
``(samples - 3)//2 + 1``.

Expressions are kept by sympy, written as text that is also Python, and read back without evaluating
code.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sympy

from ..errors import UsageError
from .floor import Floor, written

__all__ = ["Expression", "Sizes"]

#: a size for each symbol, by its name
Sizes = Mapping[str, int]

#: the longest text, the deepest nesting and the greatest degree that are read: sizes are far below
#: all of them
_LONGEST = 4000
_DEEPEST = 200
_GREATEST_DEGREE = 32


@dataclass(frozen=True, slots=True)
class Expression:
    """Sums and products of symbols and integers, the least of several, and floor division by a
    positive integer.

    >>> total = Expression.symbol("past") + Expression.symbol("sequence")
    >>> str(total), total.evaluate({"past": 5, "sequence": 3})
    ('past + sequence', 8)
    >>> str(Expression.parse("4*n - 1")), Expression.constant(8).is_constant
    ('4*n - 1', True)
    >>> str(Expression.parse("(samples - 3)//2 + 1")), str(Expression.parse("min(past, 15)*batch"))
    ('(samples - 3)//2 + 1', 'batch*min(past, 15)')
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
    def least(cls, first: Expression, *others: Expression) -> Expression:
        """The least of some expressions."""
        return cls(sympy.Min(first.value, *(other.value for other in others)))

    @classmethod
    def parse(cls, text: str) -> Expression:
        """The expression that :meth:`__str__` wrote. No code is evaluated.

        :raises UsageError: ``bad-expression`` when the text is none, or one that is no size in
            earnest: very long, deeply nested, with a large power
        """
        try:
            if len(text) > _LONGEST:
                raise ValueError("too long")
            body = ast.parse(text, mode="eval").body
            if _degree(body) > _GREATEST_DEGREE:
                raise ValueError("too large a power")
            return cls(_read(body, 0))
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            shown = text if len(text) <= 80 else f"{text[:77]}..."
            raise UsageError(
                f"{shown!r} is not a size.",
                slug="bad-expression",
                hint="Write for example '2*n + 1'.",
            ) from error

    @classmethod
    def of_text(cls, text: str) -> Expression:
        """The expression of a text; a symbol called like it where the text is none, as the name of an
        axis in a file may be.

        >>> str(Expression.of_text("2*n")), Expression.of_text("number of rows").symbols
        ('2*n', ('number of rows',))
        """
        try:
            return cls.parse(text)
        except UsageError:
            return cls.symbol(text)

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

    def evaluate(self, sizes: Sizes) -> int:
        """The number for a size of each symbol.

        :raises UsageError: ``size-missing`` when a symbol has no size
        """
        if self.is_constant:
            return int(self.value)
        symbols = self.value.free_symbols
        missing = sorted(symbol.name for symbol in symbols if symbol.name not in sizes)
        if missing:
            raise UsageError(
                f"{self} needs a size for {', '.join(missing)}.",
                slug="size-missing",
                hint="Give one per symbol.",
            )
        return int(
            self.value.xreplace({symbol: sympy.Integer(sizes[symbol.name]) for symbol in symbols})
        )

    def solved(self, name: str, size: int, sizes: Sizes) -> int | None:
        """The size of one symbol that makes the expression ``size``; None where none does, or where
        many may.

        >>> total = Expression.parse("past + sequence")
        >>> total.solved("past", 8, {"sequence": 3}), Expression.parse("n//2").solved("n", 4, {})
        (5, None)
        """
        known = {s: sympy.Integer(sizes[s.name]) for s in self.value.free_symbols if s.name != name}
        unknown = Expression.symbol(name).value
        value = sympy.expand(self.value.xreplace(known))
        if not value.is_polynomial(unknown) or sympy.degree(value, unknown) != 1:
            return None
        found = (size - value.coeff(unknown, 0)) / value.coeff(unknown, 1)
        return int(found) if found.is_Integer and found >= 0 else None

    def settled(self, sizes: Sizes) -> Expression:
        """Returns the expression without ``min``: each is replaced by the term that is the least
        for these sizes.

        >>> kept = Expression.parse("min(past, 15) + 1")
        >>> str(kept.settled({"past": 7})), str(kept.settled({"past": 20}))
        ('past + 1', '16')
        """
        if not self.value.has(sympy.Min):
            return self

        def least(*terms: Any) -> Any:
            return min(
                terms,
                key=lambda term: (Expression(term).evaluate(sizes), term.is_Integer, str(term)),
            )

        return Expression(self.value.replace(sympy.Min, least))

    def renamed(self, names: Mapping[str, str]) -> Expression:
        """The expression with other names for its symbols."""
        mapping = {
            s: Expression.symbol(names.get(s.name, s.name)).value for s in self.value.free_symbols
        }
        return Expression(self.value.xreplace(mapping))

    def replaced(self, values: Mapping[str, Expression]) -> Expression:
        """The expression with symbols replaced by expressions."""
        mapping = {s: values[s.name].value for s in self.value.free_symbols if s.name in values}
        return Expression(sympy.expand(self.value.xreplace(mapping)))

    def __add__(self, other: Expression) -> Expression:
        return Expression(self.value + other.value)

    def __sub__(self, other: Expression) -> Expression:
        return Expression(self.value - other.value)

    def __mul__(self, factor: int | Expression) -> Expression:
        return Expression(self.value * (factor.value if isinstance(factor, Expression) else factor))

    def __floordiv__(self, divisor: int) -> Expression:
        return Expression(Floor(self.value, sympy.Integer(divisor)))

    def __str__(self) -> str:
        return written(self.value)


def _read(node: ast.expr, depth: int) -> Any:
    if depth > _DEEPEST:
        raise ValueError("too deep")
    if isinstance(node, ast.Name):
        return Expression.symbol(node.id).value
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return sympy.Integer(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_read(node.operand, depth + 1)
    if isinstance(node, ast.BinOp):
        return _read_operation(node, depth + 1)
    if (
        isinstance(node, ast.Call)
        and ast.unparse(node.func) == "min"
        and len(node.args) > 1
        and not node.keywords
    ):
        return sympy.Min(*(_read(argument, depth + 1) for argument in node.args))
    raise ValueError(ast.dump(node))


def _read_product(node: ast.expr, depth: int) -> Any:
    """All factors at once: sympy multiplies ``2*(a + b)`` out, and leaves ``2*(a + b)*c`` as it
    is.
    """
    factors = []
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        factors.append(_read(node.right, depth))
        node, depth = node.left, depth + 1
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        factors.append(sympy.Integer(-1))
        node = node.operand
    return sympy.Mul(_read(node, depth), *reversed(factors))


def _read_operation(node: ast.BinOp, depth: int) -> Any:
    if isinstance(node.op, ast.Mult):
        return _read_product(node, depth)
    left, right = _read(node.left, depth), _read(node.right, depth)
    if isinstance(node.op, ast.Add):
        return left + right
    if isinstance(node.op, ast.Sub):
        return left - right
    if isinstance(node.op, ast.FloorDiv) and right.is_Integer and right > 0:
        return Floor(left, right)
    if isinstance(node.op, ast.Pow) and right.is_Integer and right > 0:
        return left**right
    raise ValueError(ast.dump(node))


def _degree(node: ast.AST) -> int:
    """The degree in all symbols, where a power of a number counts as one of a symbol.

    An expression is written with its own degree or a smaller one, so that it can be read again.
    """
    if isinstance(node, ast.Name):
        return 1
    inner = [_degree(child) for child in ast.iter_child_nodes(node)]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        exponent = node.right.value if isinstance(node.right, ast.Constant) else None
        return exponent * max(1, *inner) if isinstance(exponent, int) else _GREATEST_DEGREE + 1
    return (
        sum(inner)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)
        else max(inner, default=0)
    )
