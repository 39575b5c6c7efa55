"""Classes of axes that may change together: axes of the same size, the likeliest first, and parts
of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch

from ...core.call import Values
from ...core.path import Path
from ...core.spec import Axis
from ...infer.relations import group_equal
from ...infer.samples import Table
from ..overrides import Overrides

__all__ = ["batches", "by_size", "parts", "persistent_state", "sides", "size_of", "still_axes"]

#: a container deeper than this, ``past.layers[0]``, holds the state of a layer
_DEPTH_OF_STATE = 2


def size_of(axis: Axis, base: Values) -> int:
    """The size of an axis, or the int itself."""
    value = base[axis.path]
    return int(value if axis.dim is None else value.shape[axis.dim])


def still_axes(table: Table, base: Values, overrides: Overrides) -> list[Axis]:
    """The axes of tensors that never changed, nor changed with others where some calls lack them,
    and that the caller did not make static; then ints that count them.

    Where the caller wants the sizes of the watched calls alone, only the axes that he made dynamic.

    An int counts an axis when it stands beside the tensor in the same container, and has its size.
    """
    tied = {axis for column in group_equal(table) for axis in column.axes}
    still = [axis for axis in table.axes if axis not in tied and overrides.may_change(axis)]
    tensors: list[Axis] = []
    sizes_in_containers = set()
    for axis in still:
        if axis.dim is not None and isinstance(base.get(axis.path), torch.Tensor):
            tensors.append(axis)
            sizes_in_containers.add(_sized(axis, base))
    counts: list[Axis] = []
    for axis in still:
        is_inside = axis.dim is None and axis.path in base and len(axis.path.entries) > 1
        if is_inside and _sized(axis, base) in sizes_in_containers:
            counts.append(axis)
    return [*tensors, *counts]


def _container(axis: Axis) -> tuple[Any, ...]:
    """The steps to the container of the leaf."""
    return axis.path.entries[:-1]


def batches(still: Sequence[Axis], base: Values) -> Iterator[tuple[Axis, ...]]:
    """Yields the axes that may be a batch: first dimensions of one size, or second ones where the
    first has another size, or that size by chance, as the state of two layers for a batch of two.

    First dimensions that are multiples of it come too, so the least one is first: images or tokens,
    laid flat.
    """
    first = [axis for axis in still if axis.dim == 0]
    for axes in sorted(by_size(first, base), key=lambda axes: size_of(axes[0], base)):
        size = size_of(axes[0], base)
        seconds = [axis for axis in still if _is_second_of(axis, size, base)]
        second = tuple(axis for axis in seconds if int(base[axis.path].shape[0]) != size)
        second_paths = {axis.path for axis in second}
        flat = []
        for axis in first:
            is_multiple = size > 0 and size_of(axis, base) % size == 0
            if is_multiple and axis not in axes and axis.path not in second_paths:
                flat.append(axis)
        for more in dict.fromkeys(((*second, *flat), second, tuple(flat), ())):
            yield (*axes, *more)
        by_chance = {axis.path for axis in seconds} - second_paths
        others = [axis for axis in axes if axis.path not in by_chance]
        if by_chance and others:
            yield (*others, *seconds)
        yield from parts(axes, frozenset())


def _is_second_of(axis: Axis, size: int, base: Values) -> bool:
    """True for a second dimension of the size of a batch, in a tensor of three dimensions or more."""
    value = base[axis.path]
    is_second = axis.dim == 1 and value.ndim > 2
    return is_second and int(value.shape[1]) == size


def by_size(axes: Sequence[Axis], base: Values) -> Iterator[tuple[Axis, ...]]:
    """The axes grouped by their size, in the order in which the sizes are met."""
    groups: dict[int, list[Axis]] = {}
    for axis in axes:
        groups.setdefault(size_of(axis, base), []).append(axis)
    for group in groups.values():
        yield tuple(group)


def parts(axes: tuple[Axis, ...], state: Collection[Axis]) -> Iterator[tuple[Axis, ...]]:
    """A class, then the class without the axes that may only have the same size by chance."""
    yield axes
    if any(axis in state for axis in axes):
        yield tuple(axis for axis in axes if axis not in state)
    places = list(dict.fromkeys(_place(axis) for axis in axes))
    if len(places) > 1:
        for place in places:
            yield tuple(axis for axis in axes if _place(axis) != place)
    if len(places) > 2:
        for place in places:
            yield tuple(axis for axis in axes if _place(axis) == place)


def _place(axis: Axis) -> tuple[str, int | None]:
    """The argument, and the dimension in it."""
    return axis.path.root, axis.dim


def sides(axes: Sequence[Axis]) -> list[tuple[Axis, ...]]:
    """The sides of a class that holds several axes of one tensor: all first ones, all second ones.

    The sides of a square image have one size by chance.
    """
    by_tensor: dict[Path, list[Axis]] = {}
    for axis in axes:
        by_tensor.setdefault(axis.path, []).append(axis)
    several = [found for found in by_tensor.values() if len(found) > 1]
    most = max(map(len, several), default=0)
    # image.shape[2], image.shape[3] and mask.shape[1], mask.shape[2]: both heights, both widths
    found_sides: list[tuple[Axis, ...]] = []
    for place in range(most):
        found_sides.append(tuple(found[place] for found in several if len(found) > place))
    return found_sides


def persistent_state(still: Sequence[Axis], table: Table, base: Values) -> frozenset[Axis]:
    """The axes of which a change says little: those of size 1 inside, and those of the state of a layer that kept
    their size over calls, and that no int beside them counts.
    """
    counted = {_sized(axis, base) for axis in still if axis.dim is None}

    def kept_its_size(axis: Axis) -> bool:
        n_calls = sum(size is not None for size in table.column(axis))
        is_of_layer = len(axis.path.entries) > _DEPTH_OF_STATE
        return n_calls > 1 and is_of_layer and _sized(axis, base) not in counted

    return frozenset(
        axis for axis in still if axis.dim != 0 and (size_of(axis, base) < 2 or kept_its_size(axis))
    )


def _sized(axis: Axis, base: Values) -> tuple[tuple[Any, ...], int]:
    """The container of a leaf, and the size of its axis."""
    return _container(axis), size_of(axis, base)
