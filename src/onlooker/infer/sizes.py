"""Chooses sizes: general ones for examples, changed ones for experiments, and fresh ones for
trials.

An example: a plan has ``ids`` of shape (batch, sequence), ``past`` of shape (batch, past, 8) and ``mask`` of
shape (batch, past + sequence). torch takes two equal sizes for one symbol, and makes a number of 0, of 1 and
of a size that is always there. So a trace has sizes that tell all axes apart::

    batch 3, sequence 5, past 7       past + sequence is 12: all differ, and none is 0, 1 or 8

A trial may have any, and these are sizes that no trace has::

    batch 4, sequence 6, past 8       others in the middle
    batch 4, sequence 6, past 0       one symbol at its least size
    batch 17, sequence 1, past 1      one symbol far beyond what was seen, beside small ones
    batch 4, sequence 4, past 4       all equal
"""

from __future__ import annotations

import enum
import logging
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from ..core.errors import ExportError
from ..core.plan import Plan, Symbol
from ..core.sizes.expression import Expression, Sizes

__all__ = [
    "Scale",
    "alignment",
    "alike_sizes",
    "are_in_range",
    "choose_sizes",
    "cut_sizes",
    "even_sizes",
    "example_sizes",
    "expressed_sizes",
    "is_below_observed",
    "is_general",
    "is_possible",
    "large_symbols",
    "least_sizes",
    "listed",
    "middle_sizes",
    "nearly_alike_sizes",
    "observed_sizes",
    "roomy_sizes",
    "size_label",
    "sizes_off_step",
    "smaller_sizes",
    "static_sizes",
    "stepped_sizes",
    "trial_sizes",
]

logger = logging.getLogger(__name__)

#: sizes up to this one are taken from small primes, larger ones from the neighbourhood of what was
#: seen
_SMALL = 24
_MOST_TRIES = 4000
_SMALL_PRIMES = (2, 3, 5, 7)
#: a size that an experiment can make smaller
_ROOM = 3
#: by how much consecutive choices of roomy sizes differ
_OFFSETS = (2, 0, 3, 1, 4)
#: the most steps away from a size
_MOST_STEPS = 11
#: sides of images are multiples of this number, where large ones are multiples of a larger one
_LEAST_OF_LARGE = 32
#: so many times its least size, a size is much larger
_MUCH_LARGER = 8
#: how far from the least size of a range a size inside of it is looked for
_FAR_INSIDE = 256
#: a size of all symbols at once
_EQUAL = 4
_PRIMES = (3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47)


def static_sizes(plan: Plan) -> frozenset[int]:
    """The sizes of the axes that never change: a symbol with such a size could be taken for one
    of them.
    """
    return frozenset(int(e.value) for leaf in plan.inputs for e in leaf.sizes if e.is_constant)


def _changing(plan: Plan) -> list[Expression]:
    """The expressions that are no constants, each once."""
    expressions = (e for leaf in plan.inputs for e in leaf.sizes if e.symbols)
    return list({str(e): e for e in expressions}.values())


def expressed_sizes(plan: Plan, sizes: Sizes) -> list[int]:
    """The sizes of all expressions that are no constants, each once."""
    return [expression.evaluate(sizes) for expression in _changing(plan)]


class Scale(enum.Enum):
    """The scales on which sizes are chosen."""

    SMALL = enum.auto()  #: as small as possible
    EVEN = enum.auto()  #: small, and nearly as even as what was seen
    AS_EVEN = enum.auto()  #: small, and on the same sides of remainders as what was seen
    TWICE = enum.auto()  #: twice as large, for models that halve the even ones to a size of 1
    USUAL = enum.auto()  #: small where small ones were seen, else near to what was seen
    NEAR = enum.auto()  #: near to what was seen, for models that refuse other sizes


def choose_sizes(plan: Plan, *, scale: Scale = Scale.USUAL, offset: int = 0) -> Sizes:
    """A size per symbol for the export: never 0 or 1, all distinct, off static sizes, relations
    kept.

    ``offset`` skips as many candidates, for another choice.

    :raises ExportError: ``no-sizes`` when no general sizes exist
    """
    # symbol after symbol, as numbers are filled into a puzzle: where the sizes so far leave none for the
    # next symbol, the one before takes its next candidate
    general = _General(plan)
    budget = iter(range(_MOST_TRIES))

    def completed(sizes: Sizes) -> Sizes | None:
        """The first general completion of some sizes, symbol by symbol; None where there is none."""
        if len(sizes) == len(plan.symbols):
            return sizes
        symbol = plan.symbols[len(sizes)]
        for candidate in _candidates(symbol, scale, offset):
            trial = {**sizes, symbol.name: candidate}
            if candidate in general.avoid or not general.holds(trial):
                continue
            if next(budget, None) is None:
                return None
            found = completed(trial)
            if found is not None:
                return found
        return None

    sizes = completed({})
    if sizes is None:
        ranges = ", ".join(
            f"{s.name} in {s.low}..{'' if s.high is None else s.high}" for s in plan.symbols
        )
        raise ExportError(
            f"No sizes are general for {ranges}: all are 0, 1, static, or equal to another one.",
            slug="no-sizes",
            hint="Widen the range of a symbol, or make it static.",
        )
    return sizes


class _General:
    """Sizes of a plan that tell its axes apart, and how they are found."""

    def __init__(self, plan: Plan) -> None:
        self.avoid = set(static_sizes(plan)) | {0, 1}
        self._expressions = [(frozenset(e.symbols), e) for e in _changing(plan)]

    def holds(self, sizes: Sizes) -> bool:
        """True when the expressions that can be evaluated are distinct, positive and off the static
        sizes.

        ``min(past, 15)`` is ``past`` below 15: the two are one expression there.
        """
        known = sizes.keys()
        alike = {e.settled(sizes) for symbols, e in self._expressions if symbols <= known}
        values = [e.evaluate(sizes) for e in alike]
        return len(set(values)) == len(values) and all(
            v > 1 and v not in self.avoid for v in values
        )


def is_general(plan: Plan, sizes: Sizes) -> bool:
    """True when no size or expression that can be evaluated is 0, 1, static, or equal to another
    one.
    """
    general = _General(plan)
    return not general.avoid & set(sizes.values()) and general.holds(sizes)


def are_in_range(plan: Plan, sizes: Sizes) -> bool:
    """True where each size is in the range and in the step of its symbol."""
    return all(symbol.takes(sizes[symbol.name]) for symbol in plan.symbols)


def is_possible(plan: Plan, sizes: Sizes) -> bool:
    """True when no axis has a negative size: a length may be too short for a kernel, or longer
    than what it fills.
    """
    return all(expression.evaluate(sizes) >= 0 for expression in _changing(plan))


def _candidates(symbol: Symbol, scale: Scale, offset: int) -> Iterator[int]:
    found = 0
    may_be_small = symbol.low <= 2 or (
        scale in (Scale.EVEN, Scale.AS_EVEN, Scale.TWICE)
        and _MUCH_LARGER * symbol.low <= _least_seen(symbol)
    )
    if not may_be_small or (scale is Scale.USUAL and _is_large(symbol)):
        scale = Scale.NEAR
    proposals: Iterable[int] = _proposals(symbol, scale)
    if symbol.low > 2 and _is_large(symbol):
        # a size that is halved to 1 at its least is a size of 1 up to its double
        proposals = sorted(proposals, key=lambda size: size < 2 * symbol.low)
    for value in proposals:
        if value >= 2 and symbol.takes(value):
            found += 1
            if found > offset:
                yield value


def _least_seen(symbol: Symbol) -> int:
    return min((size for size in symbol.observed if size > 1), default=2)


def _is_large(symbol: Symbol) -> bool:
    """True for a symbol of which no small size was seen, but for 0 and 1."""
    return _least_seen(symbol) > _SMALL


def is_below_observed(plan: Plan, sizes: Sizes) -> bool:
    """True where some size is smaller than all large ones that were seen of its symbol."""
    return any(_is_large(s) and sizes[s.name] < _least_seen(s) for s in plan.symbols)


def large_symbols(plan: Plan) -> list[str]:
    """The symbols of which no small size was seen, but for 0 and 1."""
    return [symbol.name for symbol in plan.symbols if _is_large(symbol)]


def cut_sizes(plan: Plan, sizes: Sizes, small: Sizes) -> Sizes:
    """The sizes of a call, its large ones replaced by small ones."""
    return {
        s.name: small[s.name] if sizes[s.name] > max(_SMALL, small[s.name]) else sizes[s.name]
        for s in plan.symbols
    }


def _proposals(symbol: Symbol, scale: Scale) -> Iterator[int]:
    if scale is Scale.NEAR:
        middle, step = (
            (_least_seen(symbol) + max(symbol.observed, default=2)) // 2,
            alignment(symbol),
        )
        around = [middle - middle % step + step * k for k in range(1, 8)]
        yield from sorted(
            around, key=lambda size: size // step % 2 == 0
        )  # what divides by more is less general
        middle -= middle % symbol.step
        yield from (middle + symbol.step * k for k in range(1, 24))
        yield from (middle - symbol.step * k for k in range(24))
    units = {
        Scale.EVEN: _small_alignment(symbol),
        Scale.AS_EVEN: _even_alignment(symbol),
        Scale.TWICE: 2 * _small_alignment(symbol),
    }
    unit = units.get(scale, symbol.step)
    yield from (prime * unit for prime in _PRIMES)
    yield from (symbol.step * k for k in range(2, 200))


def alignment(symbol: Symbol) -> int:
    """The largest power of two that divides most sizes that were seen: sides of images are
    rarely odd.

    Of large sizes it is at most an eighth, 32 for images of 256: two steps more would make a call
    four times as large.
    """
    seen = [size for size in symbol.observed if size > 1]
    # of 224, 256 and 300: 2 and 4 divide all of them, 8, 16 and 32 two of three, and 64 is more than
    # an eighth of 224, which allows 32 at the most
    power = 1
    while (
        seen
        and 4 * power <= min(seen)
        and 2 * power <= max(_LEAST_OF_LARGE, min(seen) // 8)
        and 2 * sum(size % (2 * power) == 0 for size in seen) >= len(seen)
    ):
        power *= 2
    return math.lcm(power, symbol.step)


def _small_alignment(symbol: Symbol) -> int:
    """As :func:`alignment`, but at most an eighth of the least large size: 16 for images of 224."""
    return _at_most(alignment(symbol), _least_seen(symbol) // 8, symbol.step)


def _even_alignment(symbol: Symbol) -> int:
    """As :func:`alignment`, but at most a quarter of the least size: 32 for images of 224, which five
    layers that halve leave even.
    """
    return _at_most(alignment(symbol), _least_seen(symbol) // 4, symbol.step)


def _at_most(unit: int, most: int, step: int) -> int:
    """The unit, halved until it is at most ``most`` or no multiple of twice the step."""
    while unit > most and unit % (2 * step) == 0:
        unit //= 2
    return unit


def observed_sizes(plan: Plan) -> Sizes:
    """The greatest size that was seen of each symbol."""
    return {symbol.name: max(symbol.observed, default=2) for symbol in plan.symbols}


def example_sizes(plan: Plan) -> Iterator[Sizes]:
    """Sizes for an example: general small ones, then general ones near to what was observed, then
    the greatest.

    Plans without general sizes have the greatest observed ones alone.
    """
    is_large = any(map(_is_large, plan.symbols))
    choices = [(Scale.SMALL, 0), (Scale.SMALL, 1)]
    choices += [(Scale.SMALL, 2), (Scale.EVEN, 0), (Scale.EVEN, 1)] if is_large else []
    larger = [(Scale.TWICE, 0), (Scale.TWICE, 1)] if is_large else []
    larger += [(Scale.NEAR, 0), (Scale.NEAR, 1), (Scale.NEAR, 3)]
    tried: list[Sizes] = []
    for sizes in chain(_chosen(plan, choices), _cheapest_first(_chosen(plan, larger))):
        if sizes not in tried:
            tried.append(sizes)
            yield sizes
    yield observed_sizes(plan)


def smaller_sizes(plan: Plan, sizes: Sizes, holds: Callable[[Sizes], bool]) -> Iterator[Sizes]:
    """General sizes that are no larger than some, and at which a condition ``holds``; 0 and 1 stay."""
    for general in example_sizes(plan):
        choice = {
            name: size if size < 2 else min(general.get(name, size), size)
            for name, size in sizes.items()
        }
        if choice != sizes and is_possible(plan, choice) and holds(choice):
            yield choice


def _chosen(plan: Plan, choices: Iterable[tuple[Scale, int]]) -> Iterator[Sizes]:
    """Sizes of each scale and offset, where there are general ones."""
    for scale, offset in choices:
        try:
            yield choose_sizes(plan, scale=scale, offset=offset)
        except ExportError as error:
            logger.debug("%s", error)


def _cheapest_first(choices: Iterable[Sizes]) -> list[Sizes]:
    """The choices, those with the smallest product of sizes first: their calls are the least work."""
    return sorted(choices, key=lambda sizes: math.prod(sizes.values()))


def even_sizes(plan: Plan, calls: Sequence[Sizes]) -> Iterator[Sizes]:
    """General sizes that are as even as those of some calls: on the same sides of conditions on
    remainders. There are none where the sizes of the calls have no common divisor.
    """
    watched = tuple(
        replace(symbol, observed=tuple(sorted({call[symbol.name] for call in calls})))
        for symbol in plan.symbols
    )
    if any(_even_alignment(symbol) > symbol.step for symbol in watched):
        choices = [(Scale.EVEN, 0), (Scale.EVEN, 1)]
        if _has_sides(plan):
            choices.insert(0, (Scale.AS_EVEN, 0))
        yield from _chosen(replace(plan, symbols=watched), choices)


def _has_sides(plan: Plan) -> bool:
    """True where some argument has two large axes that change, as images do: layers halve these."""
    large = set(large_symbols(plan))
    n_large = [sum(not large.isdisjoint(e.symbols) for e in leaf.shape) for leaf in plan.inputs]
    return max(n_large, default=0) > 1


def alike_sizes(plan: Plan, calls: Sequence[Sizes]) -> Iterator[Sizes]:
    """The sizes of :func:`example_sizes`, but symbols that had equal sizes in each of the calls have
    equal ones; ``calls`` are the sizes of all symbols in some calls.
    """
    leader_of = {one.name: group[0].name for group in _alike(plan, calls) for one in group}
    for sizes in example_sizes(plan):
        alike = {symbol.name: sizes[leader_of[symbol.name]] for symbol in plan.symbols}
        if are_in_range(plan, alike):
            yield alike


def _alike(plan: Plan, calls: Sequence[Sizes]) -> list[list[Symbol]]:
    """The symbols of a plan, those that had equal sizes in each of some calls together."""
    groups: dict[tuple[int, ...], list[Symbol]] = {}
    for symbol in plan.symbols:
        groups.setdefault(tuple(call[symbol.name] for call in calls), []).append(symbol)
    return list(groups.values())


def nearly_alike_sizes(
    plan: Plan, calls: Sequence[Sizes], choices: Iterable[Sizes]
) -> Iterator[Sizes]:
    """The choices, but symbols that had equal sizes in each of the calls differ by few steps: a model may take
    no more ids than their mask is long. None where no symbols had.
    """
    groups = _alike(plan, calls)
    if not calls or len(groups) == len(plan.symbols):
        return
    for sizes in choices:
        for way in (1, -1):
            nearly = {
                symbol.name: max(sizes[one.name] for one in group) + way * number * symbol.step
                for group in groups
                for number, symbol in enumerate(group)
            }
            if are_in_range(plan, nearly) and is_general(plan, nearly):
                yield nearly


def roomy_sizes(plan: Plan, number: int) -> Iterator[Sizes]:
    """General sizes, first those which can be made smaller; a ``number`` of another experiment
    gives other ones.
    """
    first = _OFFSETS[number % len(_OFFSETS)]
    if any(map(_is_large, plan.symbols)):  # they have room, and the largest ones cost the most
        small = [(Scale.SMALL, first), (Scale.EVEN, first)]
        larger = [(Scale.TWICE, first), *((Scale.USUAL, offset) for offset in (first % 2, 1, 2))]
    else:
        small = [(Scale.USUAL, offset) for offset in (first, 2, 4, 6)]
        larger = []
    for sizes in chain(_chosen(plan, small), _cheapest_first(_chosen(plan, larger))):
        if min(expressed_sizes(plan, sizes), default=_ROOM) >= _ROOM:
            yield sizes
    yield from example_sizes(plan)


def stepped_sizes(plan: Plan, sizes: Sizes, name: str, way: int, *, least: int = 1) -> Sizes | None:
    """The sizes with one symbol larger (``way`` 1) or smaller (-1) by ``least`` of its steps or a
    few more, the others as they were.

    General ones if there are any, else the first possible ones; None where no size of the symbol is
    possible. Where so many steps leave no size above 1, the symbol moves by ones.
    """
    step = plan.symbol(name).step
    leaves_none = sizes[name] + way * least * step <= 1
    step = 1 if leaves_none else step
    possible: list[Sizes] = []
    for number in range(least, least + _MOST_STEPS):
        size = sizes[name] + way * number * step
        changed = {**sizes, name: size}
        if size > 1 and is_possible(plan, changed):
            possible.append(changed)
    general = (changed for changed in possible if is_general(plan, changed))
    return next(general, possible[0] if possible else None)


def sizes_off_step(symbol: Symbol, *, below: bool = False) -> Iterator[int]:
    """Sizes that are no multiples of the step, above the observed ones: the next one, then ones of
    smaller steps. Then, if wanted, as far ``below`` the greatest one, which may be the most that a
    table of the model has.
    """
    largest = max(symbol.observed)
    smaller = [
        symbol.step // prime
        for prime in _SMALL_PRIMES
        if symbol.step % prime == 0 and symbol.step > prime
    ]
    yield from (largest + step for step in (1, *smaller))
    if below:
        yield from (largest - step for step in (1, *smaller) if largest - step > 1)


def middle_sizes(plan: Plan, seed: int) -> Sizes:
    """A small size per symbol, beside which another symbol is tried; every ``seed`` but 0 gives
    others.
    """
    chooser = random.Random(seed) if seed else None
    shifts = [chooser.randrange(12) if chooser else 0 for _ in plan.symbols]
    return {
        s.name: _inside(s, 4 + 2 * i + shift)
        for i, (s, shift) in enumerate(zip(plan.symbols, shifts, strict=True))
    }


def trial_sizes(
    plan: Plan,
    used: Iterable[Sizes],
    *,
    middle: Sizes | None = None,
    least: Sizes | None = None,
    seed: int = 0,
) -> list[Sizes]:
    """Sizes that neither the export nor ``used`` had.

    A ``middle`` size of every symbol, one of each and the ``least`` of each; then one symbol after the
    other at its least size and at one, the others at the middle, and beyond twice what was seen, the
    others at one; then equal sizes. Sizes that make some axis negative are left out. Every ``seed``
    but 0 gives other middle and large sizes.
    """
    middle = middle_sizes(plan, seed) if middle is None else middle
    least = least_sizes(plan) if least is None else least
    ones = {s.name: s.nearest(max(least[s.name], 1)) for s in plan.symbols}
    shift = random.Random(seed).randrange(24) if seed else 0
    proposals = [middle, ones, least]
    for symbol in plan.symbols:
        name, far = symbol.name, 2 * max((*symbol.observed, 8)) + 1 + shift
        proposals += [{**middle, name: least[name]}, {**middle, name: ones[name]}]
        proposals += [{**ones, name: symbol.nearest(far)}]
    if len(plan.symbols) > 1:
        size = max(middle.values())
        equal = {s.name: _EQUAL if least[s.name] <= _EQUAL else size for s in plan.symbols}
        proposals.append({s.name: s.nearest(equal[s.name]) for s in plan.symbols})
    seen = list(used)
    trials = []
    for sizes in proposals:
        if sizes not in seen and is_possible(plan, sizes):
            seen.append(sizes)
            trials.append(sizes)
    return trials


def least_sizes(plan: Plan) -> dict[str, int]:
    """The least size of each symbol."""
    return {symbol.name: symbol.nearest(symbol.low) for symbol in plan.symbols}


def listed(sizes: Sizes) -> str:
    """The sizes in a sentence: ``batch = 5, sequence = 1``."""
    return ", ".join(f"{name} = {size}" for name, size in sizes.items())


def size_label(sizes: Sizes) -> str:
    """The sizes as text: ``batch=5, sequence=1``."""
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


def _inside(symbol: Symbol, wanted: int) -> int:
    """The size nearest to ``wanted``; in a range with two ends, one that was not seen if there is
    any.
    """
    nearest = symbol.nearest(wanted)
    if symbol.high is None or nearest not in (*symbol.observed, symbol.low, symbol.high):
        return nearest
    inside = range(symbol.low + 1, min(symbol.high, symbol.low + _FAR_INSIDE))
    fresh = (size for size in inside if symbol.takes(size) and size not in symbol.observed)
    return next(fresh, nearest)
