"""Floats of Python that change from call to call: calls that differ in them alone are one form.

A guidance scale or a timestep is another number in most calls. Were each number a form of its own,
as any other constant is, a thousand calls would be a thousand forms, each compared with all others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from ..core.call import Call
from ..core.path import Path
from ..core.spec import ConstantSpec, Spec

__all__ = ["Floats", "float_kind", "floats_of", "merged_floats", "some_floats"]

#: some of the values of each float
Floats = dict[Path, tuple[ConstantSpec, ...]]
_MOST_VALUES = 8


def float_kind(spec: ConstantSpec) -> str:
    """Returns the class that two floats of one form have in common, since numpy computes in other
    ways than Python.

    >>> float_kind(ConstantSpec(0.5))
    'float'
    """
    return type(spec.value).__name__


def floats_of(calls: Sequence[Call]) -> Floats:
    """Some of the values of each float in calls of one structure, by path; one value where it
    never changed.
    """
    example = calls[0].inputs
    places = [
        i
        for i, spec in enumerate(example.leaves)
        if isinstance(spec, ConstantSpec) and spec.is_float
    ]
    if not places:
        return {}
    paths = list(example.structure.paths())
    leaves = [call.inputs.leaves for call in calls]
    return {paths[i]: some_floats(specs[i] for specs in leaves) for i in places}


def merged_floats(parts: Iterable[Floats]) -> Floats:
    """Some of the values of each float over several forms."""
    values: dict[Path, list[Spec]] = {}
    for part in parts:
        for path, specs in part.items():
            values.setdefault(path, []).extend(specs)
    return {path: some_floats(specs) for path, specs in values.items()}


def some_floats(specs: Iterable[Spec]) -> tuple[ConstantSpec, ...]:
    """At most eight of the distinct values: those that are not finite, then from the least to the
    greatest.

    ``0.0`` and ``-0.0`` are two values, a NaN is one.

    >>> [str(spec) for spec in some_floats(ConstantSpec(n / 2) for n in range(100))]
    ['0.0', '7.0', '14.0', '21.0', '28.0', '35.0', '42.0', '49.5']
    """
    distinct: Mapping[object, ConstantSpec] = {
        _key(spec.value): spec
        for spec in specs
        if isinstance(spec, ConstantSpec) and isinstance(spec.value, float)
    }
    finite = sorted(
        (spec for spec in distinct.values() if math.isfinite(_number(spec))), key=_order
    )
    others = sorted(
        (spec for spec in distinct.values() if not math.isfinite(_number(spec))), key=str
    )
    room = _MOST_VALUES - len(others)
    if len(finite) > room:
        step = (len(finite) - 1) / (room - 1)
        finite = [*(finite[int(step * i)] for i in range(room - 1)), finite[-1]]
    return (*others, *finite)


def _key(value: float) -> tuple[str, object, float]:
    """Equal for equal constants, without writing each number down."""
    number = float(value)
    return type(value).__name__, "nan" if number != number else number, math.copysign(1.0, number)


def _number(spec: ConstantSpec) -> float:
    return float(spec.value) if isinstance(spec.value, float) else math.nan


def _order(spec: ConstantSpec) -> tuple[float, float]:
    number = _number(spec)
    return number, math.copysign(1.0, number)
