"""A domain, and how a proposed tensor is brought into it; a valid one comes back as it is."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ..core.spec import Axis, AxisSizes
from ..pytrees.numbers import as_dtype, as_numbers, is_same
from .facts import NEAR, Fact
from .repeats import Repeat, with_repeats

__all__ = ["Domain", "Grids", "clamped_to_domain"]


@dataclass(frozen=True, slots=True)
class Grids:
    """Rows as (frames, height, width): the size of ``area_is`` is the sum of the areas, divided by ``share``.
    The sides are multiples of ``steps``.
    """

    area_is: Axis
    share: int
    steps: tuple[int, ...]

    def with_area(self, numbers: torch.Tensor, area: int) -> torch.Tensor:
        """As many grids of this area together: spread evenly where they do not have it.

        >>> from onlooker.core.path import Name, Path
        >>> grids = Grids(Axis(Path((Name("patches"),)), 0), 1, (1, 2, 2))
        >>> grids.with_area(torch.tensor([[1, 9, 9], [2, 9, 9]]), 48)
        tensor([[1, 4, 6],
                [1, 4, 6]])
        """
        if numbers.shape[1:] != (len(self.steps),):
            return numbers
        steps = torch.tensor(self.steps, device=numbers.device)
        has_steps = bool((numbers % steps == 0).all()) and int(numbers.min()) > 0
        if has_steps and int(numbers.prod(1).sum()) == area:
            return numbers
        number, (each, rest) = numbers.shape[0], divmod(area, math.prod(self.steps))
        if rest or each < number:
            return numbers
        parts = [each // number + (row < each % number) for row in range(number)]
        sides = [(*self.steps[:-2], *_sides(part, self.steps[-2:])) for part in parts]
        return torch.tensor(sides, dtype=numbers.dtype, device=numbers.device)


def _sides(part: int, steps: tuple[int, ...]) -> tuple[int, int]:
    """Height and width of a grid of so many steps, as square as may be."""
    height = next(one for one in range(math.isqrt(part), 0, -1) if part % one == 0)
    return height * steps[0], part // height * steps[1]


@dataclass(frozen=True, slots=True)
class Domain:
    """All that is known of the values of one tensor leaf; the default knows nothing. Rows lie along
    the last dimension.

    ``low`` and ``high`` are the least and the greatest value that was seen. Of a mask whose ``ones_hide``
    positions the zeros do not, as of ``src_key_padding_mask``. ``hot`` and ``simplex``
    are the dimension, counted from the end, along which one number is 1 and the others 0, or along
    which floats add up to 1. ``start`` is where consecutive rows begin: a number, or the axis that
    has the size; they may go past ``high`` where they ``extend``. Rows begin with ``first``.
    ``below`` are axes whose sizes are greater than every value, ``at_most`` those that no value
    exceeds. The last value of each row is the size of ``last_is``, the sum of all values that of
    ``total_is``, the greatest value that of ``highest_is``. The rows are ``grids``. ``repeats`` are values
    that stand as often as other arguments are long.
    """

    facts: frozenset[Fact] = frozenset()
    low: float = 0
    high: float = 0
    is_mask: bool = False
    ones_hide: bool = False
    hot: int | None = None
    simplex: int | None = None
    start: int | Axis | None = None
    extends: bool = False
    first: int | None = None
    below: tuple[Axis, ...] = ()
    at_most: tuple[Axis, ...] = ()
    last_is: Axis | None = None
    total_is: Axis | None = None
    highest_is: Axis | None = None
    grids: Grids | None = None
    repeats: tuple[Repeat, ...] = ()

    @property
    def is_plain(self) -> bool:
        """True for floats of which every number is valid, so far as one can tell."""
        return not self.facts and not self.is_mask and self.hot is None and self.simplex is None

    @property
    def is_binary(self) -> bool:
        """True where nothing but 0 and 1 was seen."""
        return Fact.BINARY in self.facts

    @property
    def is_consecutive(self) -> bool:
        """True for ints that count: each is one more than the one before."""
        return Fact.CONSECUTIVE in self.facts

    def limit(self, sizes: AxisSizes) -> int | None:
        """The greatest valid int beside tensors of these sizes, None where no size bounds it.

        An axis of size 0 bounds nothing: no index into it is valid.
        """
        limits = [sizes[axis] - 1 for axis in self.below if sizes.get(axis, 0) > 0]
        limits += [sizes[axis] for axis in self.at_most if axis in sizes]
        return min(limits, default=None)


def clamped_to_domain(value: torch.Tensor, domain: Domain, sizes: AxisSizes) -> torch.Tensor:
    """The nearest valid tensor of the same shape, beside arguments of these sizes; a valid one
    itself.

    >>> from onlooker.core.path import Name, Path
    >>> items = Axis(Path((Name("items"),)), 0)
    >>> offsets = Domain(frozenset({Fact.INTS, Fact.RISING}), 0, 5, first=0, at_most=(items,))
    >>> clamped_to_domain(torch.tensor([0, 5, 0, 2]), offsets, {items: 4})
    tensor([0, 0, 0, 2])
    """
    if value.numel() == 0 or (domain.is_plain and not domain.is_mask):
        return value
    numbers = as_numbers(value.detach())
    if numbers.dtype.is_floating_point:
        valid = _floats(numbers, domain)
    elif numbers.dtype.is_complex:
        return value
    elif domain.is_binary and domain.hot is None:
        valid = _repeated(numbers.to(torch.int64), domain, sizes).to(numbers.dtype)
        if domain.ones_hide:  # no row is hidden as a whole
            valid[..., 0] &= ~valid.bool().all(dim=-1)
    else:
        valid = _ints(numbers.to(torch.int64), domain, sizes).to(numbers.dtype)
    return value if is_same(valid, numbers) else as_dtype(valid, value.dtype).contiguous()


# ------------------------------------------------------------------------------------------- floats


def _floats(numbers: torch.Tensor, domain: Domain) -> torch.Tensor:
    facts = domain.facts
    if domain.hot is not None:
        return _one_hot(numbers, domain.hot)
    if domain.simplex is not None:
        numbers = _adding_up_to_one(numbers, domain.simplex)
    elif Fact.BINARY in facts:
        numbers = (numbers > 0.5).to(numbers.dtype)
    elif Fact.UNIT in facts:
        numbers = numbers.nan_to_num().abs().clamp(max=1)
    elif Fact.NOT_NEGATIVE in facts:
        numbers = numbers.abs()
    if facts & {Fact.RISING, Fact.FALLING} and numbers.ndim:
        falling = Fact.RISING not in facts
        numbers = _ordered(numbers, falling=falling)
        if Fact.STRICT in facts:
            numbers = _apart(numbers, falling=falling)
    return numbers


def _one_hot(numbers: torch.Tensor, dim: int) -> torch.Tensor:
    """A 1 where the greatest number stands, zeros elsewhere."""
    place = numbers.argmax(dim=dim, keepdim=True)
    return torch.zeros_like(numbers).scatter(dim, place, 1)


def _adding_up_to_one(numbers: torch.Tensor, dim: int) -> torch.Tensor:
    sums = numbers.sum(dim=dim, keepdim=True, dtype=torch.float32)
    if bool((numbers >= 0).all()) and bool(((sums - 1).abs() < NEAR).all()):
        return numbers
    positive = numbers.nan_to_num(posinf=1.0, neginf=1.0).abs().to(torch.float32)
    sums = positive.sum(dim=dim, keepdim=True)
    even = torch.full_like(positive, 1 / numbers.shape[dim])
    return torch.where(sums > 0, positive / sums, even).to(numbers.dtype)


def _ordered(numbers: torch.Tensor, *, falling: bool) -> torch.Tensor:
    return numbers.sort(dim=-1, descending=falling).values


def _apart(numbers: torch.Tensor, *, falling: bool) -> torch.Tensor:
    """Rows in which neighbours are equal, spread evenly between their ends; equal ends are
    halved, or 0 and 1.
    """
    length = numbers.shape[-1]
    if length < 2:
        return numbers
    are_equal = numbers.diff(dim=-1) == 0
    if not bool(are_equal.any()):
        return numbers
    # [2, 2, 8] has equal neighbours and becomes [2, 5, 8]; [4, 4, 4] has equal ends: [2, 3, 4]
    first, last = numbers[..., :1], numbers[..., -1:]
    other = torch.where(first == 0, torch.ones_like(first), first / 2)
    last = torch.where(first == last, other, last)
    ends = _ordered(torch.cat([first, last], dim=-1), falling=falling)
    first, last = ends[..., :1], ends[..., 1:]
    places = torch.arange(length, device=numbers.device).to(numbers.dtype)
    spread = first + (last - first) * (places / (length - 1))
    is_tied = are_equal.any(dim=-1, keepdim=True)
    return torch.where(is_tied, spread, numbers)


# --------------------------------------------------------------------------------------------- ints


def _ints(numbers: torch.Tensor, domain: Domain, sizes: AxisSizes) -> torch.Tensor:
    if domain.hot is not None:
        return _one_hot(numbers, domain.hot)
    if domain.is_consecutive and numbers.ndim:
        return _consecutive(numbers, domain, sizes)
    if Fact.PERMUTATION in domain.facts:
        return numbers.argsort(dim=-1, stable=True).argsort(dim=-1, stable=True)
    if domain.total_is is not None and domain.total_is in sizes:
        return _with_total(numbers, sizes[domain.total_is], domain)
    if (grids := domain.grids) is not None and grids.area_is in sizes:
        return grids.with_area(numbers, sizes[grids.area_is] * grids.share)
    numbers = _within(numbers, domain, sizes)
    if domain.highest_is is not None and domain.highest_is in sizes:
        numbers = _with_highest(
            numbers, sizes[domain.highest_is], falling=Fact.RISING not in domain.facts
        )
    if not numbers.ndim:
        return numbers
    if domain.repeats:
        return _repeated(numbers, domain, sizes)
    if {Fact.RISING, Fact.FALLING} <= domain.facts:
        return numbers[..., -1:].expand(numbers.shape)
    if Fact.RISING in domain.facts:
        return _rising(numbers, domain, sizes)
    if Fact.FALLING in domain.facts:
        return _ordered(numbers, falling=True)
    return numbers


def _repeated(numbers: torch.Tensor, domain: Domain, sizes: AxisSizes) -> torch.Tensor:
    """The numbers with as many of each repeated value as the sizes ask for."""
    known = {repeat.value for repeat in domain.repeats}
    low, high = int(domain.low), int(domain.high)
    other = high if low in known and high not in known else low
    return with_repeats(numbers, domain.repeats, sizes, other)


def _consecutive(numbers: torch.Tensor, domain: Domain, sizes: AxisSizes) -> torch.Tensor:
    """Rows that count; past the greatest number that was seen only where longer calls went past
    it as well.
    """
    start = (
        domain.start
        if isinstance(domain.start, int)
        else sizes.get(domain.start)
        if domain.start
        else None
    )
    first = (
        numbers.amin(dim=-1, keepdim=True)
        if start is None
        else torch.full_like(numbers[..., :1], start)
    )
    counted = first + torch.arange(numbers.shape[-1], device=numbers.device)
    return counted if domain.extends else counted.clamp(max=int(domain.high))


def _within(numbers: torch.Tensor, domain: Domain, sizes: AxisSizes) -> torch.Tensor:
    """Numbers above the limit begin again at the least one; those below zero stay."""
    limit = domain.limit(sizes)
    if limit is None or int(numbers.max()) <= limit:
        return numbers
    low = int(domain.low) if 0 <= domain.low <= limit else 0
    if domain.low > limit and domain.at_most and not domain.below:
        low = min(1, limit)  # a length, which never was 0
    low = min(low, limit)  # of an axis without a row there is no number below its size
    return torch.where(numbers > limit, low + (numbers - low) % (limit - low + 1), numbers)


def _with_total(numbers: torch.Tensor, total: int, domain: Domain) -> torch.Tensor:
    """Numbers that add up to the total: spread evenly where they do not, in their order."""
    if int(numbers.sum()) != total or int(numbers.min()) < 0:
        each, rest = divmod(max(total, 0), numbers.numel())
        numbers = torch.full_like(numbers, each)
        numbers.view(-1)[:rest] += 1
    if Fact.RISING in domain.facts:
        return _ordered(numbers, falling=False)
    return _ordered(numbers, falling=True) if Fact.FALLING in domain.facts else numbers


def _with_highest(numbers: torch.Tensor, highest: int, *, falling: bool) -> torch.Tensor:
    """Numbers up to the highest, which is one of them."""
    numbers = numbers.clamp(max=highest)
    if int(numbers.max()) == highest:
        return numbers
    flat = numbers.reshape(-1).clone()
    flat[0 if falling else -1] = highest
    return flat.reshape(numbers.shape)


def _rising(numbers: torch.Tensor, domain: Domain, sizes: AxisSizes) -> torch.Tensor:
    """Sorted rows with the right ends; without equal neighbours where there is room."""
    numbers, length = _ordered(numbers, falling=False), numbers.shape[-1]
    last = sizes.get(domain.last_is) if domain.last_is is not None else None
    if domain.first is not None and bool((numbers[..., 0] != domain.first).any()):
        numbers = numbers.clamp(min=domain.first)
        numbers[..., 0] = domain.first
    if last is not None and length > 1 and bool((numbers[..., -1] != last).any()):
        numbers = numbers.clamp(max=last)
        numbers[..., -1] = last
    if Fact.STRICT not in domain.facts or length < 2 or bool((numbers.diff(dim=-1) > 0).all()):
        return numbers
    return _spread(numbers, domain, last, domain.limit(sizes))


def _spread(
    numbers: torch.Tensor, domain: Domain, last: int | None, limit: int | None
) -> torch.Tensor:
    """Rows from their least number to the greatest valid one, in steps as even as ints can have
    them.
    """
    length = numbers.shape[-1]
    first = numbers[..., :1]
    if last is not None:
        end = torch.full_like(first, last)
    else:
        far = first + length - 1
        known = torch.full_like(first, int(domain.high))
        end = torch.maximum(numbers[..., -1:], torch.minimum(far, known))
        if domain.extends:
            end = torch.maximum(end, far)
        if limit is not None:
            end = end.clamp(max=limit)
    steps = torch.arange(length, device=numbers.device)
    return first + (end - first).clamp(min=0) * steps // (length - 1)
