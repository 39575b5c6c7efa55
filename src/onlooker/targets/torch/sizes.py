"""Which texts are sizes, and which are guards: arithmetic on symbols, and on the shapes of inputs.

torch evaluates both: sizes are written as sympy builds them, ``Add(Symbol('s0', integer=True),
Integer(1))``, guards as Python. A text that is no arithmetic, or would take for ever, is refused.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

__all__ = ["is_guard", "is_size"]

_LONGEST = 20_000
_LARGEST = 1 << 64
_HIGHEST = 64
_NAME = re.compile(r"(?!__)[A-Za-z_]\w*", re.ASCII)
_FLOAT = re.compile(r"-?[0-9.]{1,60}(e[+-]?[0-9]{1,3})?")
_FUNCTIONS = re.compile(
    "Abs|Add|And|BitwiseFn_bitwise_(and|or)|CeilDiv|CeilToInt|CleanDiv|Eq|Equality|ExprCondPair|FloatTrueDiv|FloorDiv"
    "|FloorToInt|Ge|GreaterThan|Gt|Identity|IntTrueDiv|IsNonOverlappingAndDenseIndicator|Le|LessThan|Lt|Max|Min|Mod"
    "|ModularIndexing|Mul|Ne|Not|Or|Piecewise|PythonMod|RoundToInt|StrictGreaterThan|StrictLessThan|ToFloat"
    "|TruncToFloat|TruncToInt|Unequality|Where|abs|ceiling|float|floor|int|max|min"
)
_MATH = frozenset({"ceil", "floor", "sqrt", "trunc", "isnan"})
_SHAPES = frozenset({"size", "stride", "storage_offset", "dim"})
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.BitAnd, ast.BitOr)
_COMPARISONS = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE)


def is_size(text: str) -> bool:
    """True for arithmetic on symbols and numbers, as sympy builds it.

    >>> is_size("Add(Mul(Integer(4), Symbol('s0', integer=True)), Integer(-1))")
    True
    >>> is_size("__import__('os')"), is_size("Pow(Integer(9), Integer(999999999))")
    (False, False)
    """
    return _is_arithmetic(text, _is_built)


def is_guard(text: str) -> bool:
    """True for arithmetic on the shapes of inputs.

    >>> is_guard("L['x'].size()[0] % 8 == 0"), is_guard("print(L['x'])"), is_guard("L['x'].numpy()")
    (True, False, False)
    """
    # torch puts the text into a comment and a string of the code that it writes
    return not set('\\"#\n\r\0') & set(text) and _is_arithmetic(text, _is_python)


def _is_arithmetic(text: str, grammar: Callable[[ast.expr, bool], bool]) -> bool:
    if len(text) > _LONGEST or not text.isascii():
        return False
    try:
        return grammar(ast.parse(text.strip(), mode="eval").body, False)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _is_number(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return _is_number(node.operand)
    return (
        isinstance(node, ast.Constant)
        and isinstance(node.value, (int, float))
        and abs(node.value) <= _LARGEST
    )


def _is_built(node: ast.expr, in_power: bool) -> bool:
    """What sympy writes; a power may not hold powers, or a number would fill the memory."""
    match node:
        case ast.Name(id="true" | "false" | "oo" | "int_oo"):
            return True
        case ast.Call(
            func=ast.Name(id="Symbol"), args=[ast.Constant(value=str() as name)], keywords=flags
        ):
            return _NAME.fullmatch(name) is not None and all(_is_flag(flag) for flag in flags)
        case ast.Call(
            func=ast.Name(id="Float"), args=[ast.Constant(value=str() as text)], keywords=flags
        ):
            return _FLOAT.fullmatch(text) is not None and all(_is_flag(flag) for flag in flags)
        case ast.Call(func=ast.Name(id="Integer" | "Rational"), args=numbers, keywords=[]):
            return all(_is_number(number) for number in numbers)
        case ast.Call(
            func=ast.Name(id="Pow" | "PowByNatural" | "LShift" | "RShift"),
            args=[base, high],
            keywords=[],
        ):
            numbers = high.args if isinstance(high, ast.Call) else [high]
            return (
                not in_power
                and _is_built(base, True)
                and all(_is_small(number) for number in numbers)
            )
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
            return _FUNCTIONS.fullmatch(name) is not None and all(
                _is_built(child, in_power) for child in arguments
            )
        case ast.Tuple(elts=items):
            return all(_is_built(child, in_power) for child in items)
    return False


def _is_flag(flag: ast.keyword) -> bool:
    value = flag.value.value if isinstance(flag.value, ast.Constant) else None
    return isinstance(value, bool) or (
        flag.arg in ("precision", "dps") and isinstance(value, int) and value <= 256
    )


def _is_small(node: ast.expr) -> bool:
    plain = node.operand if isinstance(node, ast.UnaryOp) else node
    value = plain.value if isinstance(plain, ast.Constant) else None
    return isinstance(value, (int, float)) and abs(value) <= _HIGHEST


def _is_python(node: ast.expr, in_power: bool) -> bool:
    """Arithmetic on sizes of inputs."""
    match node:
        case ast.Constant():
            return _is_number(node)
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() | ast.Not(), operand=operand):
            return _is_python(operand, in_power)
        case ast.BinOp(op=ast.Pow(), left=base, right=exponent):
            return not in_power and _is_small(exponent) and _is_python(base, True)
        case ast.BinOp(left=left, right=right, op=op):
            return (
                isinstance(op, _OPERATORS)
                and _is_python(left, in_power)
                and _is_python(right, in_power)
            )
        case ast.BoolOp(values=values):
            return all(_is_python(value, in_power) for value in values)
        case ast.Compare(left=left, ops=ops, comparators=others):
            signs = all(isinstance(op, _COMPARISONS) for op in ops)
            return signs and all(_is_python(value, in_power) for value in [left, *others])
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
            return _FUNCTIONS.fullmatch(name) is not None and all(
                _is_python(child, in_power) for child in arguments
            )
        case ast.Call(
            func=ast.Attribute(value=ast.Name(id="math"), attr=name), args=arguments, keywords=[]
        ):
            return name in _MATH and all(_is_python(child, in_power) for child in arguments)
    return _is_of_input(node)


def _is_of_input(node: ast.expr) -> bool:
    """``L['x']``, ``L['x'].size()[0]``."""
    match node:
        case ast.Subscript(value=ast.Name(id="L"), slice=ast.Constant(value=str() as name)):
            return _NAME.fullmatch(name) is not None
        case ast.Subscript(value=value, slice=ast.Constant(value=int())):
            return _is_of_input(value)
        case ast.Call(func=ast.Attribute(value=value, attr=name), args=[], keywords=[]):
            return name in _SHAPES and _is_of_input(value)
    return False
