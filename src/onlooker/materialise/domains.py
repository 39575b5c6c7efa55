"""The domain of each leaf: what the watched values say of the values that a valid call may have.

Ids, offsets, lengths, indices into another argument, sorted times, one-hot rows, probabilities,
masks: the domains are inferred here and nowhere else. Whatever makes values (an example, a probe, a
trial) proposes a tensor of the right shape, and :meth:`Domains.clamped` brings it into its domain
(``materialise.domain``). Where calls are few, a domain is rather too small than too large: an
offset past the end lets eager read foreign memory.

An example: two calls of an embedding bag, with ``ids`` of shape (n,) and ``offsets`` of shape (batch,)::

    ids                     offsets         what is inferred
    [7, 2, 9, 4]            [0, 2]          ids: ints, 9 at most
    [3, 3, 8, 5, 2, 6]      [0, 1, 4]       offsets: sorted, begin with 0, below the size of ids

For a trial with n = 5 and batch = 4, ``offsets`` may be proposed as [3, 9, 0, 1]. Brought into its domain it
is [0, 1, 3, 4]: sorted, and 9 is no more than the last place of ``ids``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch

from ..core.call import Values
from ..core.path import Path
from ..core.spec import Axis, AxisSizes, axis_sizes
from ..observing.store import Sample
from ..pytrees.numbers import has_floats
from .domain import Domain, Grids, clamped_to_domain
from .facts import Fact, TensorFacts, facts_of
from .repeats import repeats_of

__all__ = ["Domains", "domains_of", "limits_of"]

#: so many floats say that none is negative, or above 1, by chance in one of 75 tensors of normal
#: numbers
_ENOUGH_FLOATS = 4
#: the logarithm of the number of orders in which the floats of all rows could have been: those of
#: one row of three
_ENOUGH_ORDERS = 1.7
_SIZES = tuple[AxisSizes, ...]
_UNKNOWN = Domain()


@dataclass(frozen=True, slots=True)
class Domains:
    """The domain of every tensor leaf that a kept call has."""

    by_path: Mapping[Path, Domain] = field(default_factory=dict)

    def of(self, path: Path) -> Domain:
        """The domain of a leaf; one that knows nothing where no call had the leaf."""
        return self.by_path.get(path, _UNKNOWN)

    def clamped(self, values: Values) -> Values:
        """The values of a whole call, with each tensor brought into its domain; a valid one
        stays the same object.
        """
        sizes = axis_sizes(values.items())
        return {path: self._clamped(path, value, sizes) for path, value in values.items()}

    def changed(self, values: Values, proposed: Values) -> Values | None:
        """The proposed values in their domains; None where these are the ``values`` of before."""
        valid = self.clamped(proposed)
        is_same = all(valid[path] is value for path, value in values.items())
        return None if is_same else valid

    def are_valid(self, values: Values) -> bool:
        """True when every tensor lies in its domain."""
        return self.changed(values, values) is None

    def _clamped(self, path: Path, value: Any, sizes: AxisSizes) -> Any:
        domain = self.by_path.get(path)
        return (
            value
            if domain is None or not isinstance(value, torch.Tensor)
            else clamped_to_domain(value, domain, sizes)
        )

    def limits(self) -> dict[Path, tuple[float, float]]:
        """Per tensor of ints, and per mask, the least and the greatest value that may be drawn in
        any order.

        Of offsets it is 0 alone: others would have to rise, and a script draws each by itself.
        """
        found: dict[Path, tuple[float, float]] = {}
        for path, domain in self.by_path.items():
            if not domain.is_mask and Fact.INTS not in domain.facts:
                continue
            are_offsets = domain.first == 0
            high = domain.low if are_offsets else domain.high
            found[path] = float(domain.low), float(high)
        return found


def domains_of(samples: Sequence[Sample]) -> Domains:
    """The domains that the kept calls show."""
    calls = [
        dict(zip(sample.inputs.structure.paths(), sample.inputs.leaves, strict=True))
        for sample in samples
    ]
    sizes = tuple(axis_sizes(values.items()) for values in calls)
    paths = dict.fromkeys(path for values in calls for path in values)
    floats = frozenset(
        path for values in calls for path, value in values.items() if has_floats(value)
    )
    found: dict[Path, Domain] = {}
    for path in paths:
        seen = [(number, facts_of(values.get(path))) for number, values in enumerate(calls)]
        known = [(sizes[number], shown) for number, shown in seen if shown is not None]
        if known:
            found[path] = _domain(
                path, tuple(own for own, _ in known), [shown for _, shown in known], floats
            )
    return Domains(found)


def _domain(
    path: Path, sizes: _SIZES, seen: Sequence[TensorFacts], floats: frozenset[Path]
) -> Domain:
    low, high = min(shown.low for shown in seen), max(shown.high for shown in seen)
    facts = frozenset.intersection(*(shown.facts for shown in seen))
    hides = any(Fact.HIDES in shown.facts for shown in seen)
    if Fact.INTS in facts:
        return _domain_of_ints(path, sizes, seen, facts, low, high, floats)
    if hides or (low == high and low in (0, 1) and _is_called_mask(path)):
        return Domain(frozenset(), low, high, is_mask=True)
    return _domain_of_floats(seen, facts, low, high)


def _is_called_mask(path: Path) -> bool:
    """True for a name of a mask. It is looked at only where the values are all alike, which
    tells nothing.
    """
    return "mask" in path.root


def _domain_of_floats(
    seen: Sequence[TensorFacts], facts: frozenset[Fact], low: float, high: float
) -> Domain:
    kept: set[Fact] = set()
    orders = facts & {Fact.RISING, Fact.FALLING}
    if Fact.BINARY in facts and low < high:
        kept |= facts & {Fact.BINARY, Fact.PADDED}
    elif low < high and sum(shown.count for shown in seen) >= _ENOUGH_FLOATS:
        kept |= facts & {Fact.UNIT, Fact.NOT_NEGATIVE}
    if (
        Fact.BINARY not in kept
        and len(orders) == 1
        and sum(shown.orders for shown in seen) >= _ENOUGH_ORDERS
    ):
        kept |= orders | (facts & {Fact.STRICT})
    is_mask = {Fact.BINARY, Fact.PADDED} <= kept
    return Domain(
        frozenset(kept),
        low,
        high,
        is_mask=is_mask,
        hot=None if is_mask else _hot(seen),
        simplex=_simplex(seen),
    )


def _hot(seen: Sequence[TensorFacts]) -> int | None:
    """The last dimension along which all rows of all calls are one-hot, where at least two rows
    differ.
    """
    found: list[int] = []
    for dim in frozenset.intersection(*(shown.hot for shown in seen)):
        places = {place for shown in seen for place in shown.hot_places(dim)}
        if len(places) > 1:
            found.append(dim)
    return max(found, default=None)


def _simplex(seen: Sequence[TensorFacts]) -> int | None:
    """The last dimension along which the floats of all calls add up to 1, where it has two of
    them or more.
    """
    dims = frozenset.intersection(*(shown.simplex for shown in seen))
    wide = [dim for dim in dims if any(shown.shape[dim] > 1 for shown in seen)]
    return max(wide, default=None)


# --------------------------------------------------------------------------------------------- ints


def _domain_of_ints(
    path: Path,
    sizes: _SIZES,
    seen: Sequence[TensorFacts],
    facts: frozenset[Fact],
    low: float,
    high: float,
    floats: frozenset[Path],
) -> Domain:
    facts, hot = _settled(facts, seen), _hot(seen)
    if Fact.BINARY in facts:
        is_mask = Fact.PADDED in facts and hot is None and high == 1
        is_mask = is_mask and (low < high or Fact.BOOLS in facts or _is_called_mask(path))
        repeats = () if is_mask or hot is not None else repeats_of(path, sizes, seen, floats)
        # no row is hidden as a whole
        is_empty = any(Fact.EMPTY in shown.facts for shown in seen)
        ones_hide = is_mask and Fact.BOOLS in facts and is_empty
        facts -= {Fact.EMPTY}
        return Domain(
            facts, low, high, is_mask=is_mask, ones_hide=ones_hide, hot=hot, repeats=repeats
        )
    has_totals = low > 0 and len({shown.total for shown in seen}) > 1
    if has_totals and _total_is(path, sizes, seen) is not None:
        # a few lengths may each be one more than the one before by chance
        facts -= {Fact.CONSECUTIVE, Fact.STRICT}
    if Fact.CONSECUTIVE in facts:
        start, extends = _start(sizes, seen)
        if isinstance(start, Axis) or max(shown.row_length for shown in seen) > 1:
            return Domain(facts, low, high, start=start, extends=extends)
        facts &= _FEW
    below, at_most = _bounds(sizes, seen)
    firsts = {shown.first for shown in seen}
    first = firsts.pop() if Fact.RISING in facts and len(firsts) == 1 else None
    return Domain(
        facts,
        low,
        high,
        extends=_grows([shown.row_length for shown in seen], [shown.high for shown in seen]),
        first=first,
        below=below,
        at_most=at_most,
        last_is=_last_is(sizes, seen) if Fact.RISING in facts and first == 0 else None,
        total_is=_total_is(path, sizes, seen) if first != 0 else None,
        highest_is=_highest_is(sizes, seen),
        grids=_grids(path, sizes, seen),
        repeats=repeats_of(path, sizes, seen, floats),
    )


def _settled(facts: frozenset[Fact], seen: Sequence[TensorFacts]) -> frozenset[Fact]:
    """The facts that rows of several values show: one value stands in every order."""
    longest = max(shown.row_length for shown in seen)
    if longest < 2:
        return facts & (_FEW | {Fact.CONSECUTIVE})
    if longest < 3 or Fact.CONSECUTIVE in facts:
        facts -= {Fact.PERMUTATION}
    return facts


#: what single values show
_FEW = frozenset({Fact.INTS, Fact.BOOLS, Fact.BINARY, Fact.PADDED})


def _start(sizes: _SIZES, seen: Sequence[TensorFacts]) -> tuple[int | Axis | None, bool]:
    """Returns where rows of consecutive ints begin, and whether longer ones go past what was seen."""
    starts = [shown.start for shown in seen]
    lengths = [shown.row_length for shown in seen]
    if None not in starts and len(set(starts)) == 1:
        return starts[0], _grows(lengths, [shown.high for shown in seen])
    if None in starts:
        return None, False
    return next(_axes_of(sizes, starts), None), True


def _grows(lengths: Sequence[int], highs: Sequence[float]) -> bool:
    """True where there are rows of several lengths, and the longer ones have the greater values."""
    pairs = sorted(set(zip(lengths, highs, strict=True)))
    for (length, high), (next_length, next_high) in pairwise(pairs):
        if next_length <= length or next_high <= high:
            return False
    return len(pairs) > 1


def _axes_of(sizes: _SIZES, numbers: Sequence[Any]) -> Iterator[Axis]:
    """The axes that have these sizes in these calls."""
    for axis in sizes[0]:
        if all(own.get(axis) == number for own, number in zip(sizes, numbers, strict=True)):
            yield axis


def _bounds(
    sizes: _SIZES, seen: Sequence[TensorFacts]
) -> tuple[tuple[Axis, ...], tuple[Axis, ...]]:
    """The axes whose sizes are above all values, and those that the greatest value reaches but
    does not pass.
    """
    below, at_most = [], []
    for axis in dict.fromkeys(axis for own in sizes for axis in own):
        rooms = [
            own[axis] - shown.high for own, shown in zip(sizes, seen, strict=True) if axis in own
        ]
        least = min(rooms)
        if least > 0:
            below.append(axis)
        elif least == 0:
            at_most.append(axis)
    return tuple(below), tuple(at_most)


def _last_is(sizes: _SIZES, seen: Sequence[TensorFacts]) -> Axis | None:
    """The axis that has as its size what each row ends with: boundaries of packed rows."""
    lasts = [shown.last for shown in seen]
    longest = max(shown.row_length for shown in seen)
    is_shown = len(set(lasts)) > 1 or longest > 2
    if not is_shown or None in lasts:
        return None
    return next(_axes_of(sizes, lasts), None)


def _total_is(path: Path, sizes: _SIZES, seen: Sequence[TensorFacts]) -> Axis | None:
    """The axis whose size is the sum of the values: lengths of packed rows.

    One sum says it only for the first dimension of another argument, and for positive numbers in
    one dimension.
    """
    totals = [shown.total for shown in seen]
    if max(shown.count for shown in seen) < 2 or min(shown.low for shown in seen) < 0:
        return None
    axes = [axis for axis in _axes_of(sizes, totals) if axis.path != path]
    if len(set(totals)) > 1:
        return next(iter(axes), None)
    if any(len(shown.shape) != 1 or shown.low < 1 for shown in seen):
        return None
    return next((axis for axis in axes if axis.dim == 0), None)


def _grids(path: Path, sizes: _SIZES, seen: Sequence[TensorFacts]) -> Grids | None:
    """The axis of another argument whose size is the sum of the areas of grids, or an even share of it."""
    areas = [shown.areas for shown in seen if shown.areas is not None]
    if len(areas) < len(seen) or len({len(shown.steps) for shown in seen}) > 1:
        return None
    steps = tuple(math.gcd(*column) for column in zip(*(one.steps for one in seen), strict=True))
    for axis in dict.fromkeys(axis for own in sizes for axis in own if axis.dim == 0):
        own = [one.get(axis, 0) for one in sizes]
        share = areas[0] // own[0] if own[0] else 0
        if axis.path != path and share and areas == [share * size for size in own]:
            return Grids(axis, share, steps) if share == 1 or len(set(areas)) > 1 else None
    return None


def _highest_is(sizes: _SIZES, seen: Sequence[TensorFacts]) -> Axis | None:
    """The axis whose size is the greatest value: lengths of padded rows."""
    highs = [shown.high for shown in seen]
    return next(_axes_of(sizes, highs), None) if len(set(highs)) > 1 else None


def limits_of(samples: Sequence[Sample]) -> dict[Path, tuple[float, float]]:
    """See :meth:`Domains.limits`."""
    return domains_of(samples).limits()
