"""Facts about the values of one watched tensor; each tensor is looked at once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from ..pytrees.numbers import as_numbers
from ..pytrees.unusual import unusual

__all__ = ["NEAR", "Fact", "TensorFacts", "facts_of"]

#: a float below this one, or an infinity, hides a position: the tensor is a mask that is added
_HIDES = -1e4
#: tensors of more elements are not counted value by value
_MOST_COUNTED = 1 << 18
#: the most values of a tensor that are counted, the most frequent ones
_MOST_VALUES = 64
#: how far sums of probabilities are from 1, which short dtypes round
NEAR = 1e-2
_KNOWN: Any = WeakTensorKeyDictionary()


class Fact(Enum):
    """A property of all values, or of all rows, of a tensor; rows lie along the last dimension."""

    INTS = "ints"
    BOOLS = "bools"
    BINARY = "nothing but 0 and 1"
    PADDED = "rows of ones, with zeros at one end"
    EMPTY = "a row of nothing but zeros"
    CONSECUTIVE = "each value is one more than the one before"
    PERMUTATION = "each row has every int below its length once"
    RISING = "no value is less than the one before"
    FALLING = "no value is greater than the one before"
    STRICT = "no value equals the one before"
    UNIT = "between 0 and 1"
    NOT_NEGATIVE = "not negative"
    HIDES = "added to scores, so that positions count for nothing"


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """The facts of one tensor with elements.

    ``first`` and ``last`` are what all its rows begin and end with, ``start`` is ``first`` of
    consecutive rows, and ``total`` the sum of ints. ``orders`` is the logarithm of the number of
    orders that its rows could have had. ``hot`` and ``simplex`` are dimensions, counted from the
    end; ``places`` says where ``hot`` rows have their 1. ``counts`` has the values of ints in no
    order, how often it stands, whether all rows have as many of it, and whether it stands in one
    piece inside of rows.
    """

    facts: frozenset[Fact]
    shape: tuple[int, ...]
    low: float
    high: float
    first: int | None = None
    last: int | None = None
    total: int | None = None
    orders: float = 0.0
    hot: frozenset[int] = frozenset()
    simplex: frozenset[int] = frozenset()
    places: tuple[tuple[int, frozenset[int]], ...] = ()
    counts: tuple[tuple[int, int, bool, bool], ...] = ()
    areas: int | None = None
    steps: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def row_length(self) -> int:
        """The size of the last dimension; 1 for a tensor without dimensions."""
        return self.shape[-1] if self.shape else 1

    @property
    def start(self) -> int | None:
        """The first int of all rows of consecutive ints."""
        return self.first if Fact.CONSECUTIVE in self.facts else None

    def hot_places(self, dim: int) -> frozenset[int]:
        """Returns the places at which the rows along a one-hot dimension have their 1."""
        return dict(self.places).get(dim, frozenset())


def facts_of(value: object) -> TensorFacts | None:
    """Returns the facts that a tensor shows; None for one without elements, and for what is no
    tensor, or none that compares.
    """
    if not isinstance(value, torch.Tensor) or value.numel() == 0 or unusual(value):
        return None
    if value not in _KNOWN:
        _KNOWN[value] = _looked_at(as_numbers(value.detach()))
    found: TensorFacts | None = _KNOWN[value]
    return found


def _looked_at(numbers: torch.Tensor) -> TensorFacts | None:
    if numbers.dtype.is_complex:
        return None
    shape = tuple(numbers.shape)
    if numbers.dtype.is_floating_point:
        return _floats(numbers, shape)
    own = {Fact.INTS, Fact.BOOLS} if numbers.dtype == torch.bool else {Fact.INTS}
    return _ints(numbers.to(torch.int64), shape, own)


def _ints(numbers: torch.Tensor, shape: tuple[int, ...], facts: set[Fact]) -> TensorFacts:
    low, high = int(numbers.min()), int(numbers.max())
    rows = numbers.reshape(-1, shape[-1]) if shape else numbers.reshape(1, 1)
    facts |= _orders(rows)
    hot: dict[int, frozenset[int]] = {}
    if low >= 0 and high <= 1:
        facts |= _of_binary(numbers, rows)
        hot = _hot(numbers)
    elif bool((rows.diff(dim=-1) == 1).all()):
        facts.add(Fact.CONSECUTIVE)
    if (
        low == 0
        and high == rows.shape[1] - 1
        and bool((rows.sort(dim=-1).values.diff(dim=-1) == 1).all())
    ):
        facts.add(Fact.PERMUTATION)
    return TensorFacts(
        frozenset(facts),
        shape,
        low,
        high,
        first=_only(rows[:, 0]),
        last=_only(rows[:, -1]),
        total=int(numbers.sum()),
        hot=frozenset(hot),
        places=tuple(hot.items()),
        counts=() if facts & _ORDERED else _counts(rows),
        **_areas(numbers, low),
    )


def _areas(numbers: torch.Tensor, low: int) -> dict[str, Any]:
    """The sum of the areas of grids, and the greatest step of the sides: of rows as (frames, height, width).

    >>> _areas(torch.tensor([[1, 4, 6], [1, 8, 2]]), 1)
    {'areas': 40, 'steps': (1, 4, 2)}
    """
    if numbers.ndim != 2 or numbers.shape[1] not in _SIDES or low < 1:
        return {}
    steps = tuple(math.gcd(*column) for column in numbers.T.tolist())
    return {"areas": int(numbers.prod(1).sum()), "steps": steps}


#: how many numbers tell of a grid how large it is
_SIDES = (2, 3)
#: rows in an order are counts of something, or indices: their values are no marks of places
_ORDERED = {Fact.RISING, Fact.FALLING, Fact.CONSECUTIVE, Fact.PERMUTATION}


def _counts(rows: torch.Tensor) -> tuple[tuple[int, int, bool, bool], ...]:
    """Each value with its number, whether all rows have as many of it, and whether it stands in
    one piece inside of rows.

    >>> _counts(torch.tensor([[7, 9, 9, 4], [9, 4, 9, 7]]))
    ((4, 2, True, False), (7, 2, True, False), (9, 4, True, False))
    """
    if rows.numel() > _MOST_COUNTED:
        return ()
    values, counts = torch.unique(rows, return_counts=True)
    kept = counts.argsort(descending=True, stable=True)[:_MOST_VALUES].sort().values
    found = []
    for value, count in zip(values[kept].tolist(), counts[kept].tolist(), strict=True):
        own = rows == value
        numbers = own.sum(dim=1)
        is_even = bool((numbers == numbers[0]).all())
        found.append((value, count, is_even, _is_inside(own)))
    return tuple(found)


def _is_inside(marks: torch.Tensor) -> bool:
    """True where every row with marks has them in one piece, with others before and behind."""
    # a row 0 0 1 1 0 has the steps 0 1 0 -1: one step up for each piece
    steps = marks.to(torch.int8).diff(dim=1)
    n_pieces = steps.clamp(min=0).sum(dim=1)
    is_at_an_end = bool(marks[:, [0, -1]].any())
    return bool((n_pieces <= 1).all()) and not is_at_an_end


def _only(values: torch.Tensor) -> int | None:
    """The value, where all are equal."""
    return int(values[0]) if bool((values == values[0]).all()) else None


def _orders(rows: torch.Tensor) -> set[Fact]:
    """In which order rows stand; the first of them is looked at before the others, which are
    many as a rule.
    """
    found = {Fact.RISING, Fact.FALLING, Fact.STRICT}
    for some in (rows[:1], rows):
        steps = some.diff(dim=-1)
        if Fact.RISING in found and not bool((steps >= 0).all()):
            found -= {Fact.RISING}
        if Fact.FALLING in found and not bool((steps <= 0).all()):
            found -= {Fact.FALLING}
        if found <= {Fact.STRICT}:
            return set()
        if not bool((steps != 0).all()):
            found -= {Fact.STRICT}
    return found


def _of_binary(numbers: torch.Tensor, rows: torch.Tensor) -> set[Fact]:
    """That there is nothing but 0 and 1; and whether two-dimensional rows are ones that are
    padded at one end.
    """
    steps = rows.diff(dim=-1)
    is_rising = (steps >= 0).all(dim=-1)
    is_falling = (steps <= 0).all(dim=-1)
    is_padded = bool((is_rising | is_falling).all())
    if is_padded and numbers.ndim == 2:
        has_empty = bool((numbers == 0).all(dim=-1).any())
        return {Fact.BINARY, Fact.PADDED} | ({Fact.EMPTY} if has_empty else set())
    return {Fact.BINARY}


def _hot(numbers: torch.Tensor) -> dict[int, frozenset[int]]:
    """The dimensions along which there is one 1, with its places."""
    found: dict[int, frozenset[int]] = {}
    for dim in range(-numbers.ndim, 0):
        if numbers.shape[dim] > 1 and bool((numbers.sum(dim=dim) == 1).all()):
            found[dim] = frozenset(numbers.to(torch.int64).argmax(dim=dim).reshape(-1).tolist())
    return found


def _floats(numbers: torch.Tensor, shape: tuple[int, ...]) -> TensorFacts:
    low, high = float(numbers.min()), float(numbers.max())
    if low < _HIDES:
        return TensorFacts(frozenset({Fact.HIDES}), shape, low, high)
    if not (math.isfinite(low) and math.isfinite(high)):
        return TensorFacts(frozenset(), shape, low, high)
    rows = numbers.reshape(-1, shape[-1]) if shape else numbers.reshape(1, 1)
    facts = _orders(rows)
    orders = rows.shape[0] * math.lgamma(rows.shape[1] + 1)
    hot: dict[int, frozenset[int]] = {}
    simplex: set[int] = set()
    if low >= 0:
        facts.add(Fact.NOT_NEGATIVE)
        if high <= 1:
            facts.add(Fact.UNIT)
            sums = {
                dim: numbers.sum(dim=dim, dtype=torch.float32) for dim in range(-numbers.ndim, 0)
            }
            simplex = {dim for dim, own in sums.items() if bool(((own - 1).abs() < NEAR).all())}
            if bool(((numbers == 0) | (numbers == 1)).all()):
                facts |= _of_binary(numbers, rows)
                hot = _hot(numbers)
    return TensorFacts(
        frozenset(facts),
        shape,
        low,
        high,
        orders=orders,
        hot=frozenset(hot),
        simplex=frozenset(simplex),
        places=tuple(hot.items()),
    )
