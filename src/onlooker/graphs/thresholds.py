"""Operators that do another thing beyond a number: which they are, and their numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import sympy

from ..core.support.kinds import is_number
from ..torch_internals.sizes import FloatTrueDiv, IntTrueDiv, ToFloat

__all__ = [
    "DECIDING",
    "GREATEST_TRIED",
    "LARGE_SIZE",
    "POSITIONS",
    "THRESHOLDS",
    "numbers_in",
    "numbers_of_pieces",
    "operator_name",
    "sizes_at",
    "whole_numbers",
]

#: a threshold on sizes and positions is met by sizes up to this one
GREATEST_TRIED = 600
#: what no number tells is met at this size: sums of positions in bfloat16, exponents, a window
LARGE_SIZE = 300
#: expressions that have no pieces
_SMOOTH: tuple[type, ...] = (sympy.Add, sympy.Mul, sympy.Pow, sympy.Symbol, sympy.Number)
_SMOOTH += (IntTrueDiv, FloatTrueDiv, ToFloat)

#: operators that do another thing beyond a threshold
THRESHOLDS = frozenset(
    {
        "clamp",
        "clamp_min",
        "clamp_max",
        "where",
        "gt",
        "lt",
        "ge",
        "le",
        "eq",
        "ne",
        "round",
        "floor",
    }
    | {"ceil", "trunc", "sign", "masked_fill", "hardtanh", "relu6", "minimum", "maximum", "isnan"}
    | {
        "threshold",
        "bucketize",
        "searchsorted",
        "nan_to_num",
        "isinf",
        "isfinite",
        "fmod",
        "remainder",
    }
    | {"nansum", "nanmean", "nanmedian", "nanquantile", "fmax", "fmin"}  # NaN is left out there
)
#: operators that do what others do
_OTHER_NAMES = {"clip": "clamp"}
#: of operators that choose, the place of the argument that is compared
DECIDING = {"where": 0, "masked_fill": 1}
#: operators whose numbers tell positions apart
POSITIONS = frozenset(
    {"gt", "lt", "ge", "le", "eq", "ne", "sub", "rsub", "add", "clamp", "clamp_min", "clamp_max"}
    | {"slice", "narrow", "triu", "tril", "minimum", "maximum", "floor_divide", "remainder", "div"}
    | {"sym_max", "sym_min", "floordiv", "mod", "arange", "roll", "index_select", "select"}
)


@lru_cache(maxsize=4096)
def operator_name(target: Any) -> str:
    """The name of an operator without its overload, and without the mark of writing in place."""
    packet = getattr(target, "overloadpacket", target)
    name = str(getattr(packet, "__name__", packet)).rpartition(".")[2].rstrip("_")
    return _OTHER_NAMES.get(name, name)


def numbers_in(args: Iterable[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """The numbers among the arguments of an operator."""
    found: list[Any] = []

    def note(value: Any) -> None:
        if isinstance(value, (list, tuple)):
            for item in value:
                note(item)
        elif is_number(value):
            found.append(value)

    note(list(args))
    note(list(kwargs.values()))
    return tuple(found)


def whole_numbers(args: Iterable[Any], kwargs: Mapping[str, Any]) -> Iterator[int]:
    """Yields the numbers among the arguments of an operator on positions, from 2 on."""
    for number in numbers_in(args, kwargs):
        if 2 <= abs(number) < 2**31:
            yield abs(int(number))


def sizes_at(number: float) -> int:
    """The size at which a number on sizes may tell: itself, and for a factor below 1 where the product
    passes 1; 0 for a number that tells nothing.

    >>> sizes_at(64.0), sizes_at(-0.01), sizes_at(1)
    (64, 100, 0)
    """
    size = abs(float(number))
    if not 0 < size < 2**31:
        return 0
    size = round(1 / size) if size < 1 else int(size)
    return size if 2 <= size < 2**31 else 0


def numbers_of_pieces(expression: Any) -> frozenset[int]:
    """The sizes at which an expression of sizes may begin another piece: 64 of ``n // 64`` and of
    ``ceil(n / 64)``, 12 of ``max(0, n - 12)``.
    """
    found: set[int] = set()
    for part in sympy.preorder_traversal(expression):
        if part.args and not isinstance(part, _SMOOTH):
            found.update(
                sizes_at(number) for number in part.atoms(sympy.Number) if number.is_finite
            )
    return frozenset(found - {0})
