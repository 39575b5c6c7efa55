"""Ranges of symbols: from the caller, from the plan, or from the watched calls.

An example: calls had batches of 2 to 5 and lengths of 3 to 40. With ``ranges={"batch": (1, 64),
"sequence": "observed"}`` a batch is 1 to 64 and a length 3 to 40, on every target. A size that is a
sum or a product of others (``past + sequence``) is limited by the ranges of its parts.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from ..core.call import Join
from ..core.errors import UsageError
from ..core.plan import Plan, Range, Symbol
from ..core.recording import Recording
from ..core.sizes.expression import Expression
from ..materialise.counting import known_sizes, values_of_specs
from ..pytrees.joins import join_specs, joined
from .overrides import OBSERVED, Overrides, check_symbols

__all__ = ["check_bounded", "from_one_on", "greatest", "plans_in_ranges", "seen_sizes"]

#: per symbol the least and the greatest size of a call
Seen = Mapping[str, tuple[int, int]]


def seen_sizes(plans: Iterable[Plan], recording: Recording, joins: Sequence[Join] = ()) -> Seen:
    """The least and the greatest size that the watched calls had, by the name of the symbol.

    Sizes that only experiments had do not count.
    """
    inputs = {
        call.index: values_of_specs(joined(call.inputs, joins, join_specs))
        for call in recording.calls
    }
    found: dict[str, tuple[int, int]] = {}
    for plan in plans:
        for index in plan.calls:
            if index not in inputs:
                continue
            for name, size in known_sizes(plan, inputs[index]).items():
                low, high = found.get(name, (size, size))
                found[name] = min(low, size), max(high, size)
    return found


def plans_in_ranges(plans: Sequence[Plan], overrides: Overrides, seen: Seen) -> list[Plan]:
    """The plans with the ranges that the caller gave: limits, or the sizes of the watched calls.

    A range only ever narrows what a plan has. A symbol that the caller made dynamic, and that no call
    changed, keeps its range where the sizes of the calls were asked for.

    :raises UsageError: ``bad-pin``, ``no-such-symbol``, ``pin-contradicts-calls``,
        ``range-beyond-bound``
    """
    check_symbols(overrides, plans)
    if not overrides.ranges and not overrides.observed:
        return list(plans)
    return [
        replace(plan, symbols=tuple(_in_range(s, plan, overrides, seen) for s in plan.symbols))
        for plan in plans
    ]


def _in_range(symbol: Symbol, plan: Plan, overrides: Overrides, seen: Seen) -> Symbol:
    if symbol.name in overrides.ranges:
        return _within(symbol, overrides.ranges[symbol.name], seen)
    if not overrides.is_observed(symbol.name) or symbol.name not in seen:
        return symbol
    low, high = seen[symbol.name]
    if low == high and any(map(overrides.is_dynamic, plan.axes_of(symbol.name))):
        return symbol
    found = _within(symbol, (low, high), {})
    kept = tuple(size for size in symbol.observed if found.allows(size))
    return replace(found, observed=kept or (low,))


def _within(symbol: Symbol, limits: Range, seen: Seen) -> Symbol:
    """The symbol inside a range.

    :raises UsageError: ``bad-pin``, ``pin-contradicts-calls``, ``range-beyond-bound``
    """
    low, high = limits
    most = symbol.high if symbol.limit else None
    if most is not None and high is not None and high > most:
        raise UsageError(
            f"ranges= asks for {symbol.name} up to {high}, and the model takes no more than"
            f" {most}: {symbol.limit}.",
            slug="range-beyond-bound",
            hint="Ask for the sizes that the model takes, or for less.",
        )
    highs = [limit for limit in (symbol.high, high) if limit is not None]
    found = replace(symbol, low=max(symbol.low, low or 0), high=min(highs, default=None))
    if found.high != symbol.high:
        found = replace(found, limit="")
    if found.high is not None and found.low > found.high:
        raise UsageError(
            f"The program allows {symbol.name} {symbol.range}; ranges= asks for {_spelled(limits)}.",
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


def from_one_on(plan: Plan, numbers: Collection[str] = ()) -> Plan:
    """The plan without sizes of 0 that neither a call had nor the user asked for, but for symbols that are
    ``numbers`` and no size of any tensor, such as the step of a schedule.

    They are proven for the graph of torch. Other runtimes compute some empty tensors otherwise, or
    refuse them.
    """
    symbols = tuple(
        replace(symbol, low=1, zero_by_trial=False)
        if symbol.is_empty_too and symbol.name not in numbers
        else symbol
        for symbol in plan.symbols
    )
    return replace(plan, symbols=symbols)


def _spelled(limits: Range) -> str:
    low, high = limits
    if high is None:
        return f"{low or 0} and more"
    return f"up to {high}" if low is None else f"{low} to {high}"


def check_bounded(plans: Iterable[Plan], seen: Seen, target: str) -> None:
    """Passes where every symbol has a greatest size, for a target that plans its memory.

    :raises UsageError: ``bounds-needed`` with the ranges to write
    """
    symbols = {symbol.name: symbol for plan in plans for symbol in plan.symbols}
    missing = [name for name, symbol in symbols.items() if symbol.high is None]
    if not missing:
        return
    ranges = {
        name: (symbol.least, symbol.high) if symbol.high is not None else _seen_range(symbol, seen)
        for name, symbol in symbols.items()
    }
    raise UsageError(
        f"{target} plans its memory for the greatest sizes, and nothing limits"
        f" {', '.join(missing)}.",
        slug="bounds-needed",
        hint=(
            f"Give the greatest sizes that calls will have. The watched calls need ranges={ranges};"
            f" ranges={OBSERVED!r} stands for the least and the greatest sizes of these calls."
        ),
    )


def _seen_range(symbol: Symbol, seen: Seen) -> tuple[int, int]:
    """The sizes of the calls, from the least size that the plan allows; without calls, those of
    experiments.
    """
    greatest_seen = max(symbol.observed, default=1)
    _, high = seen.get(symbol.name, (symbol.least, greatest_seen))
    return symbol.least, max(symbol.least, high)


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
