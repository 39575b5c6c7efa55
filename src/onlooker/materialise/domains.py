"""The domain of each leaf: what the watched values say of the values that a lawful call may have.

Ids, offsets, lengths, indices into another argument, sorted times, one-hot rows, probabilities,
masks: the domains are inferred here and nowhere else. Whatever makes values (an example, a probe, a
trial) proposes a tensor of the right shape, and :meth:`Domains.lawful` brings it into its domain
(``materialise.domain``). Where calls are few, a domain is rather too small than too large: an
offset past the end lets eager read foreign memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch

from ..core.path import Path
from ..core.spec import Axis
from ..observing.store import Sample
from .domain import Domain, brought
from .facts import Fact, Shown, shown_by
from .repeats import repeats_of

__all__ = ["Domains", "domains_of", "limits_of"]

#: so many floats say that none is negative, or above 1, by chance in one of 75 tensors of normal
#: numbers
_ENOUGH_FLOATS = 4
#: the logarithm of the number of orders in which the floats of all rows could have been: those of
#: one row of three
_ENOUGH_ORDERS = 1.7
_SIZES = tuple[Mapping[Axis, int], ...]
_UNKNOWN = Domain()


@dataclass(frozen=True, slots=True)
class Domains:
    """The domain of every tensor leaf that a kept call has."""

    by_path: Mapping[Path, Domain] = field(default_factory=dict)

    def of(self, path: Path) -> Domain:
        """The domain of a leaf; one that knows nothing where no call had the leaf."""
        return self.by_path.get(path, _UNKNOWN)

    def lawful(self, values: Mapping[Path, Any]) -> dict[Path, Any]:
        """The values of a whole call, with each tensor brought into its domain; a lawful one
        stays the same object.
        """
        sizes = _sizes_of(values)
        return {path: self._lawful(path, value, sizes) for path, value in values.items()}

    def are_lawful(self, values: Mapping[Path, Any]) -> bool:
        """True when every tensor lies in its domain."""
        lawful = self.lawful(values)
        return all(lawful[path] is value for path, value in values.items())

    def _lawful(self, path: Path, value: Any, sizes: Mapping[Axis, int]) -> Any:
        domain = self.by_path.get(path)
        return (
            value
            if domain is None or not isinstance(value, torch.Tensor)
            else brought(value, domain, sizes)
        )

    def limits(self) -> dict[Path, tuple[float, float]]:
        """Per tensor of ints, and per mask, the least and the greatest value that may be drawn in
        any order.

        Of offsets it is 0 alone: others would have to rise, and a script draws each by itself.
        """
        kept = {p: d for p, d in self.by_path.items() if d.is_mask or Fact.INTS in d.facts}
        highs = {p: d.low if d.first == 0 else d.high for p, d in kept.items()}
        return {path: (float(domain.low), float(highs[path])) for path, domain in kept.items()}


def domains_of(samples: Sequence[Sample]) -> Domains:
    """The domains that the kept calls show."""
    calls = [
        dict(zip(sample.inputs.structure.paths(), sample.inputs.leaves, strict=True))
        for sample in samples
    ]
    sizes = tuple(_sizes_of(values) for values in calls)
    paths = dict.fromkeys(path for values in calls for path in values)
    floats = frozenset(
        path for values in calls for path, value in values.items() if _is_floating(value)
    )
    found: dict[Path, Domain] = {}
    for path in paths:
        seen = [(number, shown_by(values.get(path))) for number, values in enumerate(calls)]
        known = [(sizes[number], shown) for number, shown in seen if shown is not None]
        if known:
            found[path] = _domain(
                path, tuple(own for own, _ in known), [shown for _, shown in known], floats
            )
    return Domains(found)


def _is_floating(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _sizes_of(values: Mapping[Path, Any]) -> dict[Axis, int]:
    """The size of every axis of a call; ints count as axes."""
    sizes: dict[Axis, int] = {}
    for path, value in values.items():
        if isinstance(value, torch.Tensor):
            sizes.update({Axis(path, dim): int(size) for dim, size in enumerate(value.shape)})
        elif isinstance(value, int) and not isinstance(value, bool):
            sizes[Axis(path, None)] = value
    return sizes


def _domain(path: Path, sizes: _SIZES, seen: Sequence[Shown], floats: frozenset[Path]) -> Domain:
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
    seen: Sequence[Shown], facts: frozenset[Fact], low: float, high: float
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


def _hot(seen: Sequence[Shown]) -> int | None:
    """The last dimension along which all rows of all calls are one-hot, where at least two rows
    differ.
    """
    dims = frozenset.intersection(*(shown.hot for shown in seen))
    places = {dim: {place for shown in seen for place in shown.hot_places(dim)} for dim in dims}
    return max((dim for dim in dims if len(places[dim]) > 1), default=None)


def _simplex(seen: Sequence[Shown]) -> int | None:
    """The last dimension along which the floats of all calls add up to 1, where it has two of
    them or more.
    """
    dims = frozenset.intersection(*(shown.simplex for shown in seen))
    return max((dim for dim in dims if any(shown.shape[dim] > 1 for shown in seen)), default=None)


# --------------------------------------------------------------------------------------------- ints


def _domain_of_ints(
    path: Path,
    sizes: _SIZES,
    seen: Sequence[Shown],
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
        return Domain(facts, low, high, is_mask=is_mask, hot=hot, repeats=repeats)
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
        repeats=repeats_of(path, sizes, seen, floats),
    )


def _settled(facts: frozenset[Fact], seen: Sequence[Shown]) -> frozenset[Fact]:
    """The facts that rows of several values show: one value stands in every order."""
    longest = max(shown.row_length for shown in seen)
    if longest < 2:
        return facts & (_FEW | {Fact.CONSECUTIVE})
    if longest < 3 or Fact.CONSECUTIVE in facts:
        facts -= {Fact.PERMUTATION}
    return facts


#: what single values show
_FEW = frozenset({Fact.INTS, Fact.BOOLS, Fact.BINARY, Fact.PADDED})


def _start(sizes: _SIZES, seen: Sequence[Shown]) -> tuple[int | Axis | None, bool]:
    """Where rows of consecutive ints begin, and whether longer ones go past what was seen."""
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
    rising = all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(pairs))
    return len(pairs) > 1 and rising


def _axes_of(sizes: _SIZES, numbers: Sequence[Any]) -> Iterator[Axis]:
    """The axes that have these sizes in these calls."""
    for axis in sizes[0]:
        if all(own.get(axis) == number for own, number in zip(sizes, numbers, strict=True)):
            yield axis


def _bounds(sizes: _SIZES, seen: Sequence[Shown]) -> tuple[tuple[Axis, ...], tuple[Axis, ...]]:
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


def _last_is(sizes: _SIZES, seen: Sequence[Shown]) -> Axis | None:
    """The axis that has as its size what each row ends with: boundaries of packed rows."""
    lasts = [shown.last for shown in seen]
    is_shown = len(set(lasts)) > 1 or max(shown.row_length for shown in seen) > 2
    return next(_axes_of(sizes, lasts), None) if is_shown and None not in lasts else None


def _total_is(path: Path, sizes: _SIZES, seen: Sequence[Shown]) -> Axis | None:
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


def _highest_is(sizes: _SIZES, seen: Sequence[Shown]) -> Axis | None:
    """The axis whose size is the greatest value: lengths of padded rows."""
    highs = [shown.high for shown in seen]
    return next(_axes_of(sizes, highs), None) if len(set(highs)) > 1 else None


def limits_of(samples: Sequence[Sample]) -> dict[Path, tuple[float, float]]:
    """See :meth:`Domains.limits`."""
    return domains_of(samples).limits()
