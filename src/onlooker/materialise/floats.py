"""Other values for a float of Python that is an input: those that calls had, and others between
and beyond them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..core.call import Values
from ..core.float_range import FloatRange
from ..core.plan import LeafPlan, Plan

__all__ = ["drawn_floats", "float_choices", "watched_floats"]

#: where models branch most often
_LIKELY = (0.0, 1.0, 0.5, -1.0, 2.0)


def watched_floats(leaf: LeafPlan) -> list[float]:
    """The values that calls had, as the plan keeps them."""
    return [
        spec.value
        for spec in leaf.floats
        if isinstance(spec.value, float) and leaf.takes_float(spec.value)
    ]


def drawn_floats(leaf: LeafPlan) -> list[float]:
    """Finite values that no call had: between those of calls, beyond them, negative, zero, and
    small.

    >>> from onlooker.core.path import Name, Path
    >>> from onlooker.core.spec import ConstantSpec
    >>> drawn_floats(LeafPlan(Path((Name("t"),)), floats=(ConstantSpec(1.0), ConstantSpec(3.0))))
    [2.0, 5.25, -1.125, -3.0, 0.0, 0.5, -1.0, 1e-06]
    """
    watched = watched_floats(leaf)
    finite = sorted(float(value) for value in watched if math.isfinite(value)) or [1.0]
    low, high = finite[0], finite[-1]
    gap = max(
        zip(finite[1:], finite, strict=False),
        key=lambda pair: pair[0] - pair[1],
        default=(high, low),
    )
    span = high - low or abs(high) or 1.0
    beyond = (high + 1.125 * span, low - 1.0625 * span, -(high or 1.0))
    drawn = [(gap[0] + gap[1]) / 2, *beyond, *_LIKELY, 1e-6, *_at_ends(leaf.between)]
    known = {(value, math.copysign(1.0, value)) for value in finite}
    fresh = dict.fromkeys(
        v for v in drawn if math.isfinite(v) and (v, math.copysign(1.0, v)) not in known
    )
    made = (_like(watched[0], value) for value in fresh)
    return [value for value in made if leaf.takes_float(value)]


def _at_ends(between: FloatRange | None) -> list[float]:
    """The floats at the ends of a range, and beside them."""
    ends = () if between is None else (between.low, between.high)
    return [
        one
        for end in ends
        if end is not None
        for one in (end, math.nextafter(end, -math.inf), math.nextafter(end, math.inf))
    ]


def float_choices(plan: Plan, *, watched: bool = True) -> list[Values]:
    """A value for every float that is an input, as often as the one with the most values has some.

    The floats change together, and no two go through their values side by side. With ``watched``,
    what calls had comes first, and a thousand times the greatest of them last: two libraries differ
    there, a graph and its model do not.
    """
    leaves = [leaf for leaf in plan.inputs if leaf.is_float]
    values = [_watched_and_far(leaf) if watched else drawn_floats(leaf) for leaf in leaves]
    most = max(map(len, values), default=0)
    return [
        {
            leaf.path: _at(own, number, shift)
            for shift, (leaf, own) in enumerate(zip(leaves, values, strict=True))
        }
        for number in range(most)
    ]


def _watched_and_far(leaf: LeafPlan) -> list[float]:
    watched = watched_floats(leaf)
    far = 1e3 * max((float(value) for value in watched if math.isfinite(value)), default=1.0)
    return [
        *watched,
        *drawn_floats(leaf),
        *([one] if math.isfinite(far) and leaf.takes_float(one := _like(watched[0], far)) else []),
    ]


def _at(values: Sequence[Any], number: int, shift: int) -> Any:
    return values[(number + 3 * shift) % len(values)]


def _like(example: float, value: float) -> Any:
    """The value in the class of another float: numpy has one of its own."""
    return value if type(example) is float else type(example)(value)
