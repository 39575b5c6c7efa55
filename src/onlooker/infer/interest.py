"""The domain of interest: the sizes that a program is made for.

A model may be exported for far more sizes than anybody uses, and each side of a condition on sizes
may be a graph of its own. So a program is made for the sizes of the watched calls, for the sizes
between them, for the ranges that the user gives, and for the few sizes that every user meets. All
other sizes are served where a graph that is needed anyway serves them.

Worked example: calls had images of 64 and 96, batches of 2 and 3, and 16 channels. Then the domain
of interest has batches of 1 to 3 (a batch of 1 is an everyday size) and images of 64 to 96. Of these
the multiples of 16 come first, since all watched sides are even to that degree: they are worth a
graph of their own. An image of 71 is worth a trace, but no further graph. The channels were the same
in every call: no side of a condition on them is traced. Where the user says ``dynamic=`` of the images,
those of 2 and more are in the domain, and where ``ranges=`` says from 1 on, those of 1 too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product

from ..core.plan import LeafPlan, Plan, Range, Symbol
from ..core.sizes.expression import Sizes
from .sizes import alignment

__all__ = ["DomainOfInterest", "SizesOfInterest", "domain_of_interest"]

#: so many sizes from the least one on are looked at, so many of those above, spread evenly
_MOST_BETWEEN, _MOST_SPREAD = 200, 40
#: of so many watched calls sizes are changed
_MOST_CALLS = 4
#: sizes are looked at up to twice the greatest watched one and so many more
_LEAST_BEYOND = 8
#: the dtypes of ids, masks and positions
_COUNTS = ("torch.int64", "torch.int32", "torch.bool")
#: how many dimensions a tensor of rows of features has
_RANK_OF_FEATURES = 3
#: how deep an argument stands that a user gives: ``x`` and ``images[0]`` do, the tensors of a cache
#: do not
_DEEPEST = 2


@dataclass(frozen=True, slots=True)
class SizesOfInterest:
    """The sizes of one symbol that a program is made for.

    ``watched`` are the distinct sizes of the watched calls, in rising order. ``asked`` is the range
    that the user gives, its end None where it has none. ``everyday`` are sizes that every user meets,
    though no call had them: a batch of 1, one token, an empty cache. ``grid`` divides the watched
    sizes of 2 and more, as far as they have such a divisor. ``is_batch`` is True for rows: symbols of a
    batch may have a size of 1 alone, where one length of 1 beside others is no everyday call.
    """

    name: str
    watched: tuple[int, ...] = ()
    asked: tuple[int, int | None] | None = None
    everyday: tuple[int, ...] = ()
    grid: int = 1
    is_batch: bool = False

    @property
    def is_asked(self) -> bool:
        """True where the user says which sizes there are."""
        return self.asked is not None

    @property
    def changed(self) -> bool:
        """True where watched calls had several sizes."""
        return len(self.watched) > 1

    @property
    def is_open(self) -> bool:
        """True for a symbol that neither calls nor the user, but experiments alone made one."""
        return not self.changed and not self.is_asked

    def wants(self, size: int) -> bool:
        """True for a size that is worth a graph of its own.

        >>> height = SizesOfInterest("height", watched=(64, 96), grid=16)
        >>> [size for size in (48, 64, 71, 80, 96, 112) if height.wants(size)]
        [64, 80, 96]
        """
        if self.asked is not None:
            low, high = self.asked
            return low <= size and (high is None or size <= high)
        if size in self.watched or size in self.everyday:
            return True
        return self.takes(size) and size % self.grid == 0

    def takes(self, size: int) -> bool:
        """True for a size between the least and the greatest watched one, those included."""
        return bool(self.watched) and self.watched[0] <= size <= self.watched[-1]

    def choices(self) -> tuple[int, ...]:
        """Sizes that stand for all that are wanted: the watched ones first, then those between
        them.
        """
        low, high = (self.watched[0], self.watched[-1]) if self.watched else (2, 2)
        if self.asked is not None:
            low, greatest = self.asked
            # a range without an end is looked at up to twice the greatest watched size
            high = max(2 * high, high + _MOST_BETWEEN) if greatest is None else greatest
        # of 1 to 5,000 all sizes up to 201 are looked at, and 40 of those above
        near = range(low, min(high, low + _MOST_BETWEEN) + 1)
        width = max(1, (high - near.stop) // _MOST_SPREAD)
        far = range(near.stop, high + 1, width)
        found = dict.fromkeys((*self.watched, *self.everyday, *near, *far, high))
        return tuple(size for size in found if self.wants(size))

    def further(self) -> tuple[int, ...]:
        """Sizes that are not wanted, those between watched ones first, then the nearest ones."""
        if self.is_asked or not self.watched:
            return ()
        low, high = self.watched[0], self.watched[-1]
        between = [size for size in range(low, high + 1) if not self.wants(size)]
        around = range(2, 2 * high + _LEAST_BEYOND)
        near = sorted(around, key=lambda size: max(low - size, size - high))
        beyond = [size for size in near if size < low or size > high]
        return (*between[:_MOST_BETWEEN], *beyond[:_MOST_BETWEEN])


@dataclass(frozen=True, slots=True)
class DomainOfInterest:
    """The sizes that the graphs of one plan are made for: per symbol, and per watched call.

    ``calls`` are the sizes of the watched calls, the most frequent ones first, each with the number
    of calls that had them.
    """

    symbols: Mapping[str, SizesOfInterest] = field(default_factory=dict)
    calls: tuple[tuple[Sizes, int], ...] = ()

    def wants(self, sizes: Sizes) -> bool:
        """True for sizes of which each is worth a graph of its own."""
        return all(
            self.symbols[name].wants(size) and self._is_everyday(name, sizes)
            for name, size in sizes.items()
        )

    def _is_everyday(self, name: str, sizes: Sizes) -> bool:
        """False where a symbol has a size of 1, say, that no call had, and others that were alike have another one."""
        symbol, size = self.symbols[name], sizes[name]
        if self._alone(symbol, [size]):
            return True
        return all(sizes.get(other) == size for other in self._companions(symbol))

    def weight(self, holds: Callable[[Sizes], bool]) -> int:
        """Counts the watched calls that have sizes for which ``holds`` is true."""
        return sum(count for sizes, count in self.calls if holds(sizes))

    def choices(self) -> Iterator[Sizes]:
        """Sizes that a program has to serve where the model takes them: those of the watched calls;
        then the calls with one symbol, and with two symbols, of other wanted sizes. Symbols that were
        alike in every call have their everyday sizes at once.
        """
        yield from (dict(sizes) for sizes, _ in self.calls)
        for base, _ in self.calls[:1]:
            yield from ({**base, **sizes} for sizes in self._everyday_together())
        for number, (base, _) in enumerate(self.calls[:_MOST_CALLS]):
            for symbol in self.symbols.values():
                wanted = symbol.choices() if number == 0 else _ends(symbol)
                for size in self._alone(symbol, wanted):
                    yield {**base, symbol.name: size}
        for base, _ in self.calls[:1]:
            for one, other in combinations(self.symbols.values(), 2):
                sizes = (self._alone(symbol, _ends(symbol)) for symbol in (one, other))
                for size, other_size in product(*sizes):
                    yield {**base, one.name: size, other.name: other_size}

    def _alone(self, symbol: SizesOfInterest, sizes: Sequence[int]) -> Sequence[int]:
        """The sizes that the symbol has beside watched ones of those that were alike in every call."""
        if symbol.is_batch or symbol.is_asked or not self._companions(symbol):
            return sizes
        rare = {size for size in symbol.everyday if size not in symbol.watched}
        return [size for size in sizes if size not in rare]

    def _companions(self, symbol: SizesOfInterest) -> list[str]:
        """The names of the other symbols that had the sizes of this one in each watched call."""
        group = next(group for group in self._alike() if symbol in group)
        return [other.name for other in group if other is not symbol]

    def _alike(self) -> list[list[SizesOfInterest]]:
        """The symbols, those that had the same size in each watched call together."""
        alike: dict[tuple[int, ...], list[SizesOfInterest]] = {}
        for symbol in self.symbols.values():
            watched = tuple(sizes[symbol.name] for sizes, _ in self.calls)
            alike.setdefault(watched, []).append(symbol)
        return list(alike.values())

    def _everyday_together(self) -> Iterator[Sizes]:
        """Yields the everyday sizes of symbols that had the same size in each watched call, such as
        a batch and the rows of the states that the model keeps.
        """
        for group in self._alike():
            for size in dict.fromkeys(size for symbol in group for size in symbol.everyday):
                names = [symbol.name for symbol in group if size in symbol.everyday]
                if len(names) > 1:
                    yield dict.fromkeys(names, size)

    def further_choices(self) -> Iterator[Sizes]:
        """Sizes between those of the watched calls, and near to them, that are worth a trace, and no
        further graph.
        """
        for base, _ in self.calls[:1]:
            for symbol in self.symbols.values():
                for size in symbol.further():
                    yield {**base, symbol.name: size}

    @property
    def open_symbols(self) -> tuple[str, ...]:
        """The symbols that no watched call changed, that the user does not name, and that have no
        everyday sizes.
        """
        return tuple(
            symbol.name
            for symbol in self.symbols.values()
            if symbol.is_open and not symbol.everyday and symbol.watched
        )


def _ends(symbol: SizesOfInterest) -> tuple[int, ...]:
    """The least wanted sizes, odd and even ones; the greatest one; and
    the everyday ones.
    """
    choices = sorted(symbol.choices())
    return tuple(dict.fromkeys((*choices[:3], *choices[-1:], *symbol.everyday)))


def domain_of_interest(
    plan: Plan,
    calls: Sequence[tuple[Sizes, int]],
    ranges: Mapping[str, Range],
    dynamic: Sequence[str] = (),
) -> DomainOfInterest:
    """The domain of interest of a plan.

    ``calls`` are the sizes of the watched calls with the number of calls that had them, ``ranges``
    and ``dynamic`` what the user says: ranges of symbols, and symbols that shall change though no
    call changed them.
    """
    counted: dict[tuple[tuple[str, int], ...], int] = {}
    for sizes, count in calls:
        key = tuple(sorted(sizes.items()))
        counted[key] = counted.get(key, 0) + count
    ordered = sorted(counted.items(), key=lambda item: -item[1])
    symbols = {}
    for symbol in plan.symbols:
        watched = tuple(sorted({sizes[symbol.name] for sizes, _ in calls}))
        everyday = _everyday(plan, symbol)
        asked = None
        if symbol.name in ranges:
            low, high = ranges[symbol.name]
            asked = symbol.least if low is None else low, high
        elif symbol.name in dynamic:
            # that an axis changes does not ask for an image of height 1, often a graph of its own
            least = symbol.least if everyday else max(symbol.least, 2)
            asked = min((least, *watched)), symbol.high
        symbols[symbol.name] = SizesOfInterest(
            symbol.name,
            watched,
            asked,
            everyday,
            _grid(symbol, watched),
            any(axis.dim == 0 for axis in plan.axes_of(symbol.name)),
        )
    return DomainOfInterest(symbols, tuple((dict(key), count) for key, count in ordered))


def _grid(symbol: Symbol, watched: tuple[int, ...]) -> int:
    """Returns the number that divides the watched sizes: see :func:`alignment`."""
    seen = Symbol(symbol.name, watched, symbol.low, symbol.high, symbol.step)
    unit = alignment(seen)
    large = [size for size in watched if size > 1]
    while unit > symbol.step and unit % 2 == 0 and any(size % unit for size in large):
        unit //= 2
    return unit


def _everyday(plan: Plan, symbol: Symbol) -> tuple[int, ...]:
    """Sizes of a batch, of a sequence and of a past that every user meets."""
    leaves = {leaf.path: leaf for leaf in plan.inputs}
    axes = [(leaves[axis.path], axis.dim) for axis in plan.axes_of(symbol.name)]
    is_batch = any(dim == 0 for _, dim in axes)
    is_sequence = any(dim is not None and _may_be_sequence(leaf, dim) for leaf, dim in axes)
    found = [1] if is_batch or is_sequence else []
    if 0 in symbol.observed:
        found.append(0)
    return tuple(size for size in found if symbol.takes(size))


def _may_be_sequence(leaf: LeafPlan, dim: int) -> bool:
    """True for a dimension of ids, masks or positions, and for the steps of a tensor of rows of
    features, (batch, steps, features). What a cache holds follows from the calls before.
    """
    if dim == 0 or len(leaf.path.entries) > _DEEPEST:
        return False
    if leaf.dtype in _COUNTS:
        return True
    return dim == 1 and len(leaf.shape) == _RANK_OF_FEATURES
