"""Operators that do another thing beyond a number: which they are, and their numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from ..core.support.kinds import is_number

__all__ = ["DECIDING", "POSITIONS", "THRESHOLDS", "numbers_in", "operator_name"]

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
