"""The greatest size of every symbol, for targets that plan their memory before they run.

Such a target has an option ``ranges``: its graphs need an upper bound of every symbol of their
plans. A bound comes from the ``ranges=`` of the export, from those of the conversion, or from the
traffic. A size that is a sum or a product of others (``past + sequence``) gets its bound from its
parts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..core.errors import UsageError
from ..core.expression import Expression
from ..core.plan import Plan, Symbol
from ..core.recording import Recording
from ..core.spec import ConstantSpec
from ..hypotheses.overrides import Overrides, Range, check_symbols, overrides_of
from ..materialise.counting import sizes_of
from ..pytrees.joins import Join, join_specs, joined

__all__ = ["OBSERVED", "bounded_plans", "greatest", "seen_sizes"]

#: what a user writes for the bounds that the traffic tells
OBSERVED = "observed"

#: per symbol the least and the greatest size of a call
Seen = Mapping[str, tuple[int, int]]


def seen_sizes(plans: Iterable[Plan], recording: Recording, joins: Sequence[Join] = ()) -> Seen:
    """The least and the greatest size that the watched calls had, by the name of the symbol.

    Sizes that only experiments had do not count.
    """
    inputs = {
        call.index: {
            path: leaf.value if isinstance(leaf, ConstantSpec) else leaf
            for path, leaf in joined(call.inputs, joins, join_specs).items()
        }
        for call in recording.calls
    }
    found: dict[str, tuple[int, int]] = {}
    for plan in plans:
        for index in plan.calls:
            if index not in inputs:
                continue
            for name, size in sizes_of(plan, inputs[index]).items():
                low, high = found.get(name, (size, size))
                found[name] = min(low, size), max(high, size)
    return found


def bounded_plans(plans: Sequence[Plan], ranges: Any, seen: Seen, target: str) -> list[Plan]:
    """The plans with an upper bound of every symbol.

    ``ranges`` are as a user gives them: limits by symbol, ``"observed"`` for bounds that follow from
    the ``seen`` sizes, or None. A bound that a plan has already stays, unless a smaller one is given.
    ``"observed"`` rounds up: to the least power of two that is not less than the greatest size of a
    call, and from there to a multiple of the step of the symbol.

    :raises UsageError: ``bounds-needed`` with the ranges to write; ``bad-pin``,
        ``no-such-symbol``, ``pin-contradicts-calls``
    """
    if isinstance(ranges, str) and ranges != OBSERVED:
        raise UsageError(
            f"ranges={ranges!r} cannot be obeyed.",
            slug="bad-pin",
            hint=f"Give limits by symbol, or {OBSERVED!r} for bounds from the watched calls.",
        )
    given = Overrides() if ranges == OBSERVED else overrides_of(ranges=ranges)
    check_symbols(given, plans)
    bounded = [
        replace(plan, symbols=tuple(_within(s, given.ranges, seen) for s in plan.symbols))
        for plan in plans
    ]
    missing = {s.name: s for plan in bounded for s in plan.symbols if s.high is None}
    if not missing:
        return bounded
    told = {name: _told(symbol, seen) for name, symbol in missing.items()}
    if ranges == OBSERVED:
        return [
            replace(
                plan,
                symbols=tuple(
                    replace(s, high=told[s.name][1]) if s.high is None else s for s in plan.symbols
                ),
            )
            for plan in bounded
        ]
    written = {**{name: tuple(limits) for name, limits in given.ranges.items()}, **told}
    raise UsageError(
        f"{target} plans its memory for the greatest sizes, and nothing limits"
        f" {', '.join(missing)}.",
        slug="bounds-needed",
        hint=(
            "Give the greatest sizes that calls will have. The watched calls and some room need"
            f" ranges={written}; ranges={OBSERVED!r} stands for the same."
        ),
    )


def _within(symbol: Symbol, ranges: Mapping[str, Range], seen: Seen) -> Symbol:
    """The symbol inside a range that the user gave for it.

    :raises UsageError: ``bad-pin``, ``pin-contradicts-calls``
    """
    if symbol.name not in ranges:
        return symbol
    low, high = ranges[symbol.name]
    limits = [limit for limit in (symbol.high, high) if limit is not None]
    found = replace(symbol, low=max(symbol.low, low), high=min(limits, default=None))
    if found.high is not None and found.low > found.high:
        raise UsageError(
            f"{symbol.name} is {symbol.range} in the program, and no size of these is in"
            f" {(low, high)}.",
            slug="bad-pin",
            hint="Give a range that has sizes of both.",
        )
    for size in seen.get(symbol.name, ()):
        if symbol.allows(size) and not found.allows(size):
            raise UsageError(
                f"{symbol.name} is pinned to {found.range}, and was {size} in a call.",
                slug="pin-contradicts-calls",
                hint="Widen the range, or watch calls inside it only.",
            )
    return found


def _told(symbol: Symbol, seen: Seen) -> tuple[int, int]:
    """The range that follows from the calls; without one, from what experiments had."""
    size = max(seen[symbol.name][1] if symbol.name in seen else max(symbol.observed, default=1), 1)
    power = 1 << (size - 1).bit_length()
    high = -(-power // symbol.step) * symbol.step
    return symbol.low, max(high, symbol.low)


def greatest(expression: Expression, symbols: Mapping[str, Symbol]) -> int:
    """The greatest value of an expression of bounded symbols.

    Sums, products, ``min`` and ``//`` have it where each symbol is at one of its bounds.

    >>> past, new = Symbol("past", low=0, high=32), Symbol("new", high=8)
    >>> greatest(Expression.parse("past + new"), {"past": past, "new": new})
    40
    >>> greatest(Expression.parse("past - new"), {"past": past, "new": new})
    31
    """
    names = expression.symbols
    ends = [(symbols[name].low, symbols[name].high or 0) for name in names]
    corners = itertools.product(*ends)
    return max(expression.evaluate(dict(zip(names, corner, strict=True))) for corner in corners)
