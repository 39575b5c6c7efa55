"""A few sizes to which calls are padded, with as little padding as possible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .traffic import Row, Served

__all__ = ["Bucket", "best_cuts", "buckets_of", "moving_places", "share_of_padding"]

#: so many sizes that came together are looked at in pairs; more are first drawn together
_MOST_PAIRS = 128


@dataclass(frozen=True, slots=True)
class Bucket:
    """One size, the number of calls that are padded to it, and the work that this adds to
    theirs.
    """

    sizes: tuple[int, ...]
    calls: int
    work: int
    wasted: int


def moving_places(served: Served) -> list[int]:
    """The places of the sizes that change among the calls."""
    places = range(len(served.names))
    return [place for place in places if len({row[place] for row, _ in served.rows}) > 1]


def share_of_padding(buckets: Sequence[Bucket]) -> float:
    """The share of the work in some buckets that is padding."""
    wasted = sum(bucket.wasted for bucket in buckets)
    return wasted / (wasted + sum(bucket.work for bucket in buckets))


def buckets_of(served: Served, count: int) -> list[Bucket]:
    """At most ``count`` buckets that are enough for every call, each a size that the graph takes.

    Where one symbol changes, no other choice pads less. Where several do, sizes are drawn together,
    the cheapest two first, and each call then goes to the cheapest bucket that is large enough.
    More than ``count`` are given where two sizes have no common one that the graph takes.
    """
    rows = sorted(served.rows)
    if not rows:
        return []
    moving = moving_places(served)
    if len(moving) <= 1:
        places = best_cuts([(served.work(row), calls) for row, calls in rows], count)
        tops = [rows[place][0] for place in places]
    else:
        tops = _drawn_together(served, rows, count)
    return _filled(served, rows, tops)


def best_cuts(sizes: Sequence[tuple[int, int]], count: int) -> list[int]:
    """Chooses at most ``count`` of some growing costs, each with a number of calls, as the tops of
    buckets, such that the sum of what calls cost in their bucket is least.

    By dynamic programming: the first ``n`` sizes in ``k`` buckets cost what the first ``m`` cost in
    ``k - 1``, and the rest at the cost of the last, for the best ``m``.

    >>> best_cuts([(1, 90), (2, 1), (8, 5), (9, 4)], 2)
    [0, 3]
    """
    n = len(sizes)
    totals = [0]
    for _, calls in sizes:
        totals.append(totals[-1] + calls)
    best: list[float] = [0.0] + [float("inf")] * n
    choices: list[list[int]] = []
    for _ in range(min(count, n)):
        before, best, cut = best, [0.0, *([float("inf")] * n)], [0] * (n + 1)
        for last in range(1, n + 1):
            top = sizes[last - 1][0]
            for first in range(last):
                calls = totals[last] - totals[first]
                cost = before[first] + top * calls
                if cost < best[last]:
                    best[last], cut[last] = cost, first
        choices.append(cut)
    tops, last = [], n
    for cut in reversed(choices):
        if last == 0:
            break
        tops.append(last - 1)
        last = cut[last]
    return sorted(tops)


def _drawn_together(served: Served, rows: Sequence[Row], count: int) -> list[tuple[int, ...]]:
    """The tops of buckets, from one a size to ``count``."""
    parts = [(row, calls) for row, calls in rows]
    while len(parts) > count:
        near = len(parts) > _MOST_PAIRS  # neighbours alone
        merged = _cheapest(parts, served.work, served.takes, near=near)
        merged = merged or _cheapest(parts, served.work, served.takes, near=False)
        if merged is None:
            break
        left, right, top = merged
        calls = parts[left][1] + parts[right][1]
        parts = [part for place, part in enumerate(parts) if place not in (left, right)]
        parts = sorted([*parts, (top, calls)])
    return [top for top, _ in parts]


def _cheapest(
    parts: Sequence[Row],
    work: Callable[[tuple[int, ...]], int],
    takes: Callable[[tuple[int, ...]], bool],
    *,
    near: bool,
) -> tuple[int, int, tuple[int, ...]] | None:
    """The two parts whose common top adds the least work; None where no two have one that the graph takes."""
    found: tuple[int, int, int, tuple[int, ...]] | None = None
    works = [work(row) for row, _ in parts]
    for left in range(len(parts)):
        end = min(left + 2, len(parts)) if near else len(parts)
        for right in range(left + 1, end):
            top = tuple(map(max, parts[left][0], parts[right][0]))
            more = work(top)
            added_left = parts[left][1] * (more - works[left])
            added_right = parts[right][1] * (more - works[right])
            added = added_left + added_right
            if (found is None or added < found[0]) and takes(top):
                found = added, left, right, top
    return None if found is None else found[1:]


def _filled(served: Served, rows: Sequence[Row], tops: Sequence[tuple[int, ...]]) -> list[Bucket]:
    """The buckets with their calls: each goes to the cheapest that is large enough."""
    ordered = sorted(set(tops), key=lambda top: (served.work(top), top))
    buckets = {top: Bucket(top, 0, 0, 0) for top in ordered}
    for row, count in rows:
        top = next(top for top in ordered if _fits(row, top))
        before, own = buckets[top], served.work(row)
        buckets[top] = Bucket(
            top,
            calls=before.calls + count,
            work=before.work + count * own,
            wasted=before.wasted + count * (served.work(top) - own),
        )
    return [bucket for bucket in buckets.values() if bucket.calls]


def _fits(row: tuple[int, ...], top: tuple[int, ...]) -> bool:
    """True where no size is above that of the bucket."""
    return all(size <= most for size, most in zip(row, top, strict=True))
