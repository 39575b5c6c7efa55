"""The least, the usual and the greatest sizes of groups of calls, such that all three are lawful.

A box of sizes has corners that no call had. ``batch <= 8`` and ``length <= 2048`` may both be true
of every call where ``batch * length <= 4096``: the corner (8, 2048) is no call. A group whose
corners are outside of the contract is divided until they are inside; one of a single size always
is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .traffic import Row, Served

__all__ = ["Cluster", "clusters_of"]


@dataclass(frozen=True, slots=True)
class Cluster:
    """Sizes in the order of the symbols: the least, the most frequent, and the greatest."""

    low: tuple[int, ...]
    best: tuple[int, ...]
    high: tuple[int, ...]
    calls: int

    @property
    def corners(self) -> tuple[tuple[int, ...], ...]:
        """All three."""
        return (self.low, self.best, self.high)


def clusters_of(served: Served, wanted: int = 1) -> list[Cluster]:
    """So many groups of the calls of one graph, or more where fewer have corners outside of its
    contract; fewer where there are not so many sizes. None for a graph without calls.
    """
    parts = [list(served.rows)] if served.rows else []
    while True:
        broken = [part for part in parts if not _is_lawful(served, part)]
        divisible = [part for part in parts if len(part) > 1]
        if broken:
            chosen = broken[0]
        elif len(parts) < wanted and divisible:
            chosen = max(divisible, key=lambda part: _waste(served, part))
        else:
            break
        parts.remove(chosen)
        parts += _divided(served, chosen)
    found = [_cluster(part) for part in parts]
    return sorted(found, key=lambda cluster: (cluster.high, cluster.low))


def _cluster(part: Sequence[Row]) -> Cluster:
    rows = [row for row, _ in part]
    low = tuple(map(min, zip(*rows, strict=True)))
    high = tuple(map(max, zip(*rows, strict=True)))
    best = max(part, key=lambda item: (item[1], item[0]))[0]
    return Cluster(low, best, high, sum(count for _, count in part))


def _is_lawful(served: Served, part: Sequence[Row]) -> bool:
    """True where both corners are lawful, and no axis of any call lies outside of theirs: an axis
    such as ``4096 - past`` falls where ``past`` grows.
    """
    cluster = _cluster(part)
    if not (served.takes(cluster.low) and served.takes(cluster.high)):
        return False
    low, high = served.shapes(cluster.low), served.shapes(cluster.high)
    return all(
        least <= size <= most
        for row, _ in part
        for bounds in zip(low, served.shapes(row), high, strict=True)
        for least, size, most in zip(*bounds, strict=True)
    )


def _waste(served: Served, part: Sequence[Row]) -> int:
    """What the calls would cost more if each had the greatest sizes."""
    most = served.work(_cluster(part).high)
    return sum(count * max(0, most - served.work(row)) for row, count in part)


def _divided(served: Served, part: Sequence[Row]) -> list[list[Row]]:
    """Two groups, divided by the size of one symbol such that the least is wasted."""
    choices: list[list[list[Row]]] = []
    for place in range(len(served.names)):
        values = sorted({row[place] for row, _ in part})
        step = max(1, len(values) // 32)
        for value in values[1::step]:
            below = [item for item in part if item[0][place] < value]
            above = [item for item in part if item[0][place] >= value]
            choices.append([below, above])
    return min(choices, key=lambda pair: sum(_waste(served, side) for side in pair))
