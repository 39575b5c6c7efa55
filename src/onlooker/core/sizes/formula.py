"""Conditions on sizes as text: ``sequence > 24 and batch % 2 == 0``.

A formula is data. It can be stored in a file, read back without evaluating code, printed for a
user, and compiled. Its variables are names of symbols, or sizes of inputs (``x.shape[1]``).
"""

from __future__ import annotations

import ast
import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from types import CodeType
from typing import Any

from ..errors import UsageError

__all__ = [
    "FUNCTIONS",
    "bounds_in",
    "demanded_number",
    "evaluated",
    "holds",
    "negated",
    "numbers_near",
    "read_formula",
    "remainders_in",
    "renamed",
    "symbols_in",
    "variables_of",
]

#: the functions that a formula may call
FUNCTIONS: Mapping[str, Any] = {
    "min": min,
    "max": max,
    "abs": abs,
    "float": float,
    "int": int,
    "round": round,
    "bool": bool,
}
_OF_MATH = ("floor", "ceil", "trunc", "sqrt")
_NODES = (
    *(ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.IfExp),
    *(ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow),
    *(ast.Compare, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE),
)
_LONGEST = 10_000
_DEEPEST = 50
_GREATEST_POWER = 32


def read_formula(text: str, names: Sequence[str]) -> ast.expr:
    """The tree of a formula that has nothing but comparisons and arithmetic of sizes.

    A variable is one of ``names``, or a size of one of them: ``name.shape[dim]``.

    :raises UsageError: ``bad-condition``

    >>> ast.unparse(read_formula("x.shape[1] % 4 == 0 and n > 2", ["x", "n"]))
    'x.shape[1] % 4 == 0 and n > 2'
    >>> read_formula("open('file')", ["x"])
    Traceback (most recent call last):
    ...
    onlooker.core.errors.UsageError: "open('file')" is no condition on sizes. Compare sizes. [bad-condition]
    """
    try:
        if len(text) > _LONGEST:
            raise ValueError("too long")
        tree = ast.parse(text, mode="eval").body
        _check(tree, frozenset(names), 0)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UsageError(
            f"{text[:200]!r} is no condition on sizes.",
            slug="bad-condition",
            hint="Compare sizes.",
        ) from error
    return tree


def _check(node: ast.AST, names: frozenset[str], depth: int) -> None:
    if depth > _DEEPEST:
        raise ValueError("nested too deeply")
    if _is_variable(node, names):
        return
    children: Sequence[ast.AST]
    if isinstance(node, ast.Constant) and type(node.value) in (int, float, bool):
        children = ()
    elif isinstance(node, ast.Call) and _is_known(node.func) and not node.keywords:
        children = node.args
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        exponent = node.right.value if isinstance(node.right, ast.Constant) else None
        tower = any(isinstance(inner, ast.Pow) for inner in ast.walk(node.left))
        if not isinstance(exponent, (int, float)) or not 0 <= exponent <= _GREATEST_POWER or tower:
            raise ValueError("no power of a size")
        children = (node.left,)
    elif isinstance(node, _NODES):
        children = list(ast.iter_child_nodes(node))
    else:
        raise ValueError(ast.dump(node))
    for child in children:
        _check(child, names, depth + 1)


def _is_variable(node: ast.AST, names: frozenset[str]) -> bool:
    """True for ``name.shape[dim]``, and for a name alone."""
    if isinstance(node, ast.Name):
        return node.id in names
    return (
        isinstance(node, ast.Subscript)
        and isinstance(node.slice, ast.Constant)
        and type(node.slice.value) is int
        and isinstance(node.value, ast.Attribute)
        and node.value.attr == "shape"
        and isinstance(node.value.value, ast.Name)
        and node.value.value.id in names
    )


def _is_known(function: ast.expr) -> bool:
    if isinstance(function, ast.Attribute):
        return (
            isinstance(function.value, ast.Name)
            and function.value.id == "math"
            and function.attr in _OF_MATH
        )
    return isinstance(function, ast.Name) and function.id in FUNCTIONS


class _Renamer(ast.NodeTransformer):
    def __init__(self, rename: Callable[[str], str]) -> None:
        self.rename = rename

    def visit_Call(self, node: ast.Call) -> ast.AST:  # a variable may be called as a function is
        return ast.Call(node.func, [self.visit(argument) for argument in node.args], [])

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.parse(self.rename(node.id), mode="eval").body

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        return ast.parse(self.rename(ast.unparse(node)), mode="eval").body


_OPPOSITES: Mapping[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
}


def negated(text: str) -> str:
    """The condition that holds where another one fails.

    >>> negated("n > 24"), negated("n > 2 and n != k")
    ('n <= 24', 'not (n > 2 and n != k)')
    """
    tree = ast.parse(text, mode="eval").body
    if isinstance(tree, ast.Compare) and len(tree.ops) == 1 and type(tree.ops[0]) in _OPPOSITES:
        return ast.unparse(
            ast.Compare(tree.left, [_OPPOSITES[type(tree.ops[0])]()], tree.comparators)
        )
    return f"not ({text})"


def renamed(tree: ast.expr, rename: Callable[[str], str]) -> str:
    """The text of a formula with every variable written as ``rename`` says.

    >>> renamed(read_formula("n > 2 * k", ["n", "k"]), {"n": "x.shape[0]", "k": "k"}.__getitem__)
    'x.shape[0] > 2 * k'
    """
    return ast.unparse(_Renamer(rename).visit(_copied(tree)))


def _copied(tree: ast.expr) -> ast.expr:
    return ast.parse(ast.unparse(tree), mode="eval").body


def variables_of(tree: ast.expr) -> tuple[str, ...]:
    """The variables of a formula, each once, in the order of the text."""
    found: dict[str, None] = {}

    def note(variable: str) -> str:
        found.setdefault(variable)
        return variable

    renamed(tree, note)
    return tuple(found)


def demanded_number(text: str, term: str) -> int | None:
    """The number that a formula demands of a term; None where it is another formula.

    >>> demanded_number("n//2 == 4", "n//2"), demanded_number("n < 4", "n")
    (4, None)
    """
    wanted = ast.unparse(ast.parse(term, mode="eval"))
    match ast.parse(text, mode="eval").body:
        case ast.Compare(left, [ast.Eq()], [ast.Constant(int(number))]):
            return number if ast.unparse(left) == wanted else None
    return None


def bounds_in(text: str) -> tuple[str, int | None, int | None] | None:
    """The variable that a formula bounds by a number, with the least and the greatest size that it
    leaves; None for another formula.

    >>> bounds_in("n < 24"), bounds_in("n >= 2"), bounds_in("n % 2 == 0")
    (('n', None, 23), ('n', 2, None), None)
    """
    match ast.parse(text, mode="eval").body:
        case ast.Compare(ast.Name(name), [ast.Lt() | ast.LtE() as op], [ast.Constant(int(size))]):
            return name, None, size - isinstance(op, ast.Lt)
        case ast.Compare(ast.Name(name), [ast.Gt() | ast.GtE() as op], [ast.Constant(int(size))]):
            return name, size + isinstance(op, ast.Gt), None
    return None


@functools.lru_cache(maxsize=4096)
def numbers_near(text: str) -> frozenset[int]:
    """The whole numbers in a formula, and those beside them: sizes at which its truth may change.

    >>> sorted(numbers_near("sequence > 24 and batch % 2 == 0"))
    [-1, 0, 1, 2, 3, 23, 24, 25]
    """
    numbers = map(int, re.findall(r"\b\d+\b", text))
    return frozenset(near for number in numbers for near in range(number - 1, number + 2))


@functools.lru_cache(maxsize=4096)
def symbols_in(text: str) -> frozenset[str]:
    """The names in a formula: a longer name that ends in a shorter one is another name.

    >>> sorted(symbols_in("past_x_dim_1 + 2 <= max(batch, 3)"))
    ['batch', 'past_x_dim_1']
    """
    tree = ast.parse(text, mode="eval")
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return frozenset(names - FUNCTIONS.keys() - {"math"})


@functools.lru_cache(maxsize=4096)
def remainders_in(text: str) -> frozenset[str]:
    """The remainders by numbers in a formula.

    >>> sorted(remainders_in("n % 8 == 0 or (n + 1) // 2 % 2 != 0 or n % m == 0 or n % 8 == 3"))
    ['(n + 1) // 2 % 2', 'n % 8']
    """
    found = {
        ast.unparse(node)
        for node in ast.walk(ast.parse(text, mode="eval"))
        if isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Mod)
        and isinstance(node.right, ast.Constant)
    }
    return frozenset(found)


@functools.lru_cache(maxsize=4096)
def _compiled(text: str, names: tuple[str, ...]) -> CodeType:
    tree = read_formula(text, names)
    return compile(ast.Expression(tree), "<formula>", "eval")


def evaluated(text: str, sizes: Mapping[str, Any]) -> Any:
    """The value of a formula for a size of each variable.

    :raises UsageError: ``bad-condition``
    :raises ArithmeticError: for a division by 0

    >>> evaluated("2 * n + 1", {"n": 8})
    17
    """
    scope = {"__builtins__": {}, "math": math, **FUNCTIONS}
    return eval(_compiled(text, tuple(sizes)), scope, dict(sizes))


def holds(text: str, sizes: Mapping[str, Any]) -> bool:
    """True when a formula holds for a size of each variable; False where it has no answer (a
    division by 0).

    :raises UsageError: ``bad-condition``

    >>> holds("n % 4 == 0", {"n": 8}), holds("8 // n == 2", {"n": 0})
    (True, False)
    """
    try:
        return bool(evaluated(text, sizes))
    except (ArithmeticError, ValueError):
        return False
