"""Calls in which one tensor is broadcast beside another one, apart from those in which it is whole.

A mask of shape (batch, words) in one call and (batch, 1) in another one is no axis of a size of its
own: its size is that of the words, or 1. Both kinds of calls cannot share a plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

from ..core.call import Call
from ..core.spec import Axis, TensorSpec

__all__ = ["broadcast_groups", "unchanged_axes"]

Sizes = Mapping[Axis, int]


def broadcast_groups(calls: Sequence[Call]) -> list[tuple[tuple[Call, ...], frozenset[Axis]]]:
    """The calls by the axes that are broadcast in them: of size 1 where another axis, which has the
    same size in all other calls, is larger. None where all calls are alike in that.

    Calls with ``x`` of shape (4, 7), and masks of shape (4, 7), (4, 1) and (1, 7), are three groups:
    without such an axis, with ``mask.shape[1]`` and with ``mask.shape[0]``.
    """
    rows, known = _sizes_of_all(calls)
    pairs = [
        (small, large)
        for small, large in product(sorted(known, key=str), repeat=2)
        if small.path != large.path and _is_broadcast(small, large, rows)
    ]
    groups: dict[frozenset[Axis], list[Call]] = {}
    for call, row in zip(calls, rows, strict=True):
        axes = frozenset(small for small, large in pairs if row[small] == 1 < row[large])
        groups.setdefault(axes, []).append(call)
    if len(groups) < 2:
        return []
    return [(tuple(group), axes) for axes, group in groups.items()]


def unchanged_axes(calls: Sequence[Call]) -> frozenset[Axis]:
    """The axes that have one size in all calls."""
    rows, known = _sizes_of_all(calls)
    return frozenset(axis for axis in known if len({row[axis] for row in rows}) == 1)


def _sizes_of_all(calls: Sequence[Call]) -> tuple[list[dict[Axis, int]], set[Axis]]:
    """The sizes of each call, and the axes that all of them have."""
    rows = [_sizes(call) for call in calls]
    return rows, set(rows[0]).intersection(*rows[1:]) if rows else set()


def _sizes(call: Call) -> dict[Axis, int]:
    return {
        Axis(path, dim): size
        for path, spec in call.inputs.items()
        if isinstance(spec, TensorSpec)
        for dim, size in enumerate(spec.shape)
    }


def _is_broadcast(small: Axis, large: Axis, rows: Sequence[Sizes]) -> bool:
    """True where two axes are equal in some call, in all others one of them is 1, and the first one is 1
    beside a larger one.
    """
    are_equal = is_smaller = False
    for row in rows:
        one, other = row[small], row[large]
        if one != other and 1 not in (one, other):
            return False
        are_equal = are_equal or one == other > 1
        is_smaller = is_smaller or one == 1 < other
    return are_equal and is_smaller
