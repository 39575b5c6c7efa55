"""Values that stand as often as another argument is long: the place of an image in a text.

A text beside images has one token, say 90, wherever a row of the features of an image goes. A call
with another number of such tokens is refused by the model. The number is found in the watched calls
(:func:`repeats_of`), and every tensor that is made is given as many of them
(:func:`with_repeats`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch

from ..core.path import Path
from ..core.spec import Axis, AxisSizes
from .facts import TensorFacts

__all__ = ["Repeat", "repeats_of", "with_repeats"]

#: the least greatest number of a value that is not there by chance
_ENOUGH = 3
#: the most values of one tensor that are counted in every call
_MOST = 4
_SIZES = Sequence[AxisSizes]


@dataclass(frozen=True, slots=True)
class Repeat:
    """``value`` stands ``times`` the product of the sizes of ``axes`` in a tensor, ``divided`` by a
    number.

    All rows have the same number of them where ``even``.

    >>> from onlooker.core.path import Name
    >>> images = Axis(Path((Name("images"),)), 0)
    >>> Repeat(90, (images,), times=4).count({images: 3})
    12
    """

    value: int
    axes: tuple[Axis, ...]
    times: int = 1
    divided: int = 1
    even: bool = False

    def count(self, sizes: AxisSizes) -> int | None:
        """Returns how often the value stands beside arguments of these sizes; None where an axis is
        missing, or the number would be no whole one.
        """
        if any(axis not in sizes for axis in self.axes):
            return None
        product = self.times * math.prod(sizes[axis] for axis in self.axes)
        count, rest = divmod(product, self.divided)
        return count if not rest else None


def repeats_of(
    path: Path, sizes: _SIZES, seen: Sequence[TensorFacts], floats: Collection[Path]
) -> tuple[Repeat, ...]:
    """The values of a tensor of ints whose number goes with the sizes of another argument.

    ``sizes`` and ``seen`` are those of the calls that have the tensor. A call without the other
    argument tells nothing. Several numbers have to be in one proportion to the size. Where only one
    number was seen, it has to be the size of a first dimension, or a multiple of one, and the value
    has to stand in one piece inside of a row. Of several such arguments one of ``floats`` counts:
    features of an image rather than a table of positions.
    """
    others: dict[Path, int] = {}
    for own in sizes:
        for axis in own:
            if axis.path != path and axis.dim is not None:
                others[axis.path] = max(others.get(axis.path, 0), axis.dim + 1)
    found: dict[int, tuple[tuple[int, ...], Repeat]] = {}
    for other, n_dims in others.items():
        both = [
            (own, shown) for own, shown in zip(sizes, seen, strict=True) if Axis(other, 0) in own
        ]
        for candidate in _common(both):
            for rank, repeat in _proportions(candidate, other, n_dims, both):
                value, rank = candidate.value, (rank[0], other not in floats, *rank[1:])
                if value not in found or rank < found[value][0]:
                    found[value] = rank, repeat
    return tuple(repeat for _, repeat in found.values())[:_MOST]


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A value that all calls have, with its numbers."""

    value: int
    counts: tuple[int, ...]
    even: bool
    inside: bool


def _common(both: Sequence[tuple[AxisSizes, TensorFacts]]) -> Iterator[_Candidate]:
    """The values that all these calls have, more often than by chance, beside others."""
    if not both:
        return
    facts = [shown for _, shown in both]
    tables = [{entry[0]: entry[1:] for entry in shown.counts} for shown in facts]
    have_rows = any(len(shown.shape) > 1 and shown.shape[0] > 1 for shown in facts)
    for value in tables[0]:
        if not all(value in table for table in tables):
            continue
        counts, evens, insides = zip(*(table[value] for table in tables), strict=True)
        is_nothing_else = list(counts) == [shown.count for shown in facts]
        if max(counts) >= _ENOUGH and not is_nothing_else:
            yield _Candidate(value, counts, have_rows and all(evens), all(insides))


def _proportions(
    candidate: _Candidate,
    other: Path,
    n_dims: int,
    both: Sequence[tuple[AxisSizes, TensorFacts]],
) -> Iterator[tuple[tuple[int, ...], Repeat]]:
    """The ways in which the numbers go with the sizes of an argument, each with a rank: the
    plainest is the least.
    """
    for dims in _choices(n_dims):
        axes = tuple(Axis(other, dim) for dim in dims)
        if any(axis not in own for axis in axes for own, _ in both):
            continue
        products = [math.prod(own[axis] for axis in axes) for own, _ in both]
        if 0 in products:
            continue
        pairs = zip(candidate.counts, products, strict=True)
        ratios = {Fraction(count, product) for count, product in pairs}
        if len(ratios) > 1:
            continue
        (ratio,) = ratios
        is_one_size = len(set(products)) == 1
        if is_one_size and (dims != (0,) or ratio.denominator != 1 or not candidate.inside):
            continue
        rank = (is_one_size, len(dims), dims[0], ratio.denominator, ratio.numerator)
        yield (
            rank,
            Repeat(candidate.value, axes, ratio.numerator, ratio.denominator, candidate.even),
        )


def _choices(n_dims: int) -> Iterator[tuple[int, ...]]:
    """Dimensions whose sizes may give a number of rows: one, the first two, those of maps."""
    yield from ((dim,) for dim in range(n_dims))
    if n_dims > 2:
        yield (0, 1)
    if n_dims > 3:
        yield (0, n_dims - 2, n_dims - 1)


def with_repeats(
    numbers: torch.Tensor, repeats: Sequence[Repeat], sizes: AxisSizes, other: int
) -> torch.Tensor:
    """The numbers with as many of each value as the sizes ask for; themselves where they have
    them, or where there is no room.

    Values that are missing follow the last one of a row, those too many go from the end. ``other``
    stands for one that goes where the tensor has nothing else.
    """
    values = torch.tensor([repeat.value for repeat in repeats], device=numbers.device)
    for repeat in repeats:
        wanted = repeat.count(sizes)
        if wanted is None or wanted > numbers.numel() or not numbers.ndim:
            continue
        if int((numbers == repeat.value).sum()) == wanted and not repeat.even:
            continue
        rows = numbers.reshape(-1, numbers.shape[-1]).clone()
        taken = torch.isin(rows, values)
        free = rows[~taken]
        filler = int(free[-1]) if free.numel() else other
        have = (rows == repeat.value).sum(dim=1).tolist()
        room = (~taken).sum(dim=1).tolist()
        for row, count in enumerate(_per_row(wanted, have, room, even=repeat.even)):
            _set_count(rows[row], values, repeat.value, count, filler)
        numbers = rows.reshape(numbers.shape)
    return numbers


def _per_row(wanted: int, have: list[int], room: list[int], *, even: bool) -> list[int]:
    """Returns how many places each row gets; the first rows keep what they have."""
    each, rest = divmod(wanted, len(have))
    if even and not rest and all(each <= h + r for h, r in zip(have, room, strict=True)):
        return [each] * len(have)
    counts, missing = list(have), wanted - sum(have)
    for row in range(len(counts)):
        added = min(max(missing, 0), room[row])
        counts[row] += added
        missing -= added
    for row in reversed(range(len(counts))):
        gone = min(max(-missing, 0), counts[row])
        counts[row] -= gone
        missing += gone
    return counts


def _set_count(
    row: torch.Tensor, values: torch.Tensor, value: int, count: int, filler: int
) -> None:
    """Changes a row in place, so that the value stands so often in it."""
    places = (row == value).nonzero().reshape(-1)
    if len(places) >= count:
        row[places[count:]] = filler
        return
    free = (~torch.isin(row, values)).nonzero().reshape(-1)
    last = int(places[-1]) if len(places) else 0
    ordered = torch.cat([free[free > last], free[free <= last].flip(0)])
    row[ordered[: count - len(places)]] = value
