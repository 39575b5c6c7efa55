"""Which axes may change together: classes of the same size, the likeliest first, and parts of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch

from ..core.path import Path
from ..core.spec import Axis
from ..infer.relations import varies
from ..infer.samples import Table
from .overrides import Overrides

__all__ = ["batches", "by_size", "is_persistent_state", "parts", "sides", "size_of", "still_axes"]


def size_of(axis: Axis, base: Mapping[Path, Any]) -> int:
    """The size of an axis, or the int itself."""
    value = base[axis.path]
    return int(value if axis.dim is None else value.shape[axis.dim])


def still_axes(table: Table, base: Mapping[Path, Any], overrides: Overrides) -> list[Axis]:
    """The axes of tensors that never changed, and that the caller did not pin as static; ints that count them last."""
    still = [axis for axis in table.axes if not varies(table.column(axis)) and not overrides.is_static(axis)]
    tensors = [a for a in still if a.dim is not None and isinstance(base.get(a.path), torch.Tensor)]
    beside = {(axis.path.entries[:-1], size_of(axis, base)) for axis in tensors}
    ints = [a for a in still if a.dim is None and a.path in base and len(a.path.entries) > 1]
    return [*tensors, *(a for a in ints if (a.path.entries[:-1], size_of(a, base)) in beside)]


def batches(still: Sequence[Axis], base: Mapping[Path, Any]) -> Iterator[tuple[Axis, ...]]:
    """What may be a batch: first dimensions of one size, or second ones where the first has another size.

    First dimensions that are multiples of it come too, so the least one is first: images or tokens, laid flat.
    """
    first = [axis for axis in still if axis.dim == 0]
    for axes in sorted(by_size(first, base), key=lambda axes: size_of(axes[0], base)):
        size = int(base[axes[0].path].shape[0])
        second = tuple(a for a in still if a.dim == 1 and base[a.path].ndim > 2 and _is_second(a, size, base))
        flat = tuple(a for a in first if a not in axes and size and base[a.path].shape[0] % size == 0)
        flat = tuple(a for a in flat if a.path not in {other.path for other in second})
        for more in dict.fromkeys(((*second, *flat), second, flat, ())):
            yield (*axes, *more)
        yield from parts(axes, frozenset())


def _is_second(axis: Axis, size: int, base: Mapping[Path, Any]) -> bool:
    shape = base[axis.path].shape
    return int(shape[1]) == size and int(shape[0]) != size


def by_size(axes: Sequence[Axis], base: Mapping[Path, Any]) -> Iterator[tuple[Axis, ...]]:
    """The axes grouped by their size, in the order in which the sizes are met."""
    sizes = {axis: size_of(axis, base) for axis in axes}
    for size in dict.fromkeys(sizes.values()):
        yield tuple(axis for axis in axes if sizes[axis] == size)


def parts(axes: tuple[Axis, ...], state: Collection[Axis]) -> Iterator[tuple[Axis, ...]]:
    """A class, then the class without what only has the same size by chance."""
    yield axes
    if any(axis in state for axis in axes):
        yield tuple(axis for axis in axes if axis not in state)
    kinds = list(dict.fromkeys((axis.path.root, axis.dim) for axis in axes))
    if len(kinds) > 1:
        for kind in kinds:
            yield tuple(axis for axis in axes if (axis.path.root, axis.dim) != kind)
        for kind in kinds if len(kinds) > 2 else ():
            yield tuple(axis for axis in axes if (axis.path.root, axis.dim) == kind)


def sides(axes: Sequence[Axis]) -> list[tuple[Axis, ...]]:
    """The sides of a class that holds several axes of one tensor: all first ones, all second ones.

    The sides of a square image have one size by chance.
    """
    dims: dict[Path, list[Axis]] = {}
    for axis in axes:
        dims.setdefault(axis.path, []).append(axis)
    several = [found for found in dims.values() if len(found) > 1]
    most = max((len(found) for found in several), default=0)
    return [tuple(found[k] for found in several if len(found) > k) for k in range(most)]


def is_persistent_state(axis: Axis, table: Table, base: Mapping[Path, Any]) -> bool:
    """True where a change says little: a size of 1 inside, or the state of a layer that kept its size over calls."""
    if axis.dim == 0:
        return False
    calls = sum(size is not None for size in table.column(axis))
    return size_of(axis, base) < 2 or (calls > 1 and len(axis.path.entries) > 2)
