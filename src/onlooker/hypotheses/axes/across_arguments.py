"""Axes that change together though they stand in other dimensions, or have other sizes, or mix what
is in the rows.

The edges of a graph are the second dimension of one argument and the first one of another; a latent
is a quarter of its image; the rows of a pooled set are no batch, and may be more all the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import permutations

from ...core.call import Values
from ...core.spec import Axis
from .classes import by_size, parts, sides, size_of

__all__ = ["Multiple", "cross_argument_classes", "multiples"]

_MOST_MULTIPLES = 12

#: the axes of the larger size, those of the smaller one, and how many times it is that
Multiple = tuple[tuple[Axis, ...], tuple[Axis, ...], int]


def cross_argument_classes(
    left: Sequence[Axis], base: Values, *, has_batch: bool
) -> Iterator[tuple[Axis, ...]]:
    """Axes of one size over first and other dimensions, then first dimensions alone.

    A size of 1 says little: only the whole class comes, and none beside a batch that was found.
    """
    tensors = [axis for axis in left if axis.dim is not None]
    for axes in by_size(tensors, base):
        is_mixed = len({axis.dim == 0 for axis in axes}) > 1
        if is_mixed and size_of(axes[0], base) > 1:
            yield from parts(axes, frozenset())
    first = [axis for axis in tensors if axis.dim == 0]
    for axes in by_size(first, base):
        if size_of(axes[0], base) > 1:
            yield from parts(axes, frozenset())
        elif not has_batch:
            yield axes


def multiples(axes: Sequence[Axis], left: Collection[Axis], base: Values) -> Iterator[Multiple]:
    """Pairs of classes of different arguments of which one has a multiple of the size of the other.

    The smaller one is among ``left``. The sides of two images come one by one as well, in their
    order.
    """
    found = 0
    not_first = [axis for axis in axes if axis.dim]
    for larger, smaller in permutations(by_size(not_first, base), 2):
        small = tuple(axis for axis in smaller if axis in left)
        if not small or size_of(small[0], base) < 2:
            continue
        roots = {axis.path.root for axis in small}
        large = tuple(axis for axis in larger if axis.path.root not in roots)
        if not large:
            continue
        factor, rest = divmod(size_of(large[0], base), size_of(small[0], base))
        if factor < 2 or rest or found >= _MOST_MULTIPLES:
            continue
        found += 1
        yield large, small, factor
        for one, two in zip(sides(large), sides(small), strict=False):
            yield one, two, factor
