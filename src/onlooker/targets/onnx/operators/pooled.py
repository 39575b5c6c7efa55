"""Pools that give a number of cells for images of any size, for which torch's converter has no
functions: the windows of a cell are computed from the size of the image.

Cell ``i`` of ``n`` sees the elements from ``floor(i * size / n)`` to ``ceil((i + 1) * size / n)``, as
in torch. Each axis is pooled after the other: a window is a box.

The converter decomposes the mean to steps that ask whether the cells divide the size, and keeps the
answer of the example. Upstream:
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_decomp/decompositions.py,
``adaptive_avg_pool2d``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from onnxscript import opset18 as op

__all__ = ["largest_of_cells", "mean_of_cells"]


def mean_of_cells(self: Any, output_size: Sequence[Any]) -> Any:
    """``aten::_adaptive_avg_pool2d`` and ``3d``: the mean of the window of each cell."""
    kernel = _kernel(self, output_size)
    if kernel:
        return op.AveragePool(self, kernel_shape=kernel, strides=kernel)
    result, rank = self, len(self.shape)
    for axis, cells in _last_first(rank, output_size):
        seen = op.CastLike(_seen(_size(self, axis), cells), self)
        share = op.Transpose(op.Div(seen, op.ReduceSum(seen, [-1], keepdims=1)))
        result = _swapped(op.MatMul(_swapped(result, axis, rank), share), axis, rank)
    return result


def largest_of_cells(self: Any, output_size: Sequence[Any]) -> tuple[Any, Any]:
    """``aten::adaptive_max_pool2d`` and ``3d``: the largest element of the window of each cell, and
    its place in the image, counted row by row.
    """
    result, places, rank = self, None, len(self.shape)
    lowest = op.CastLike(op.Constant(value_float=float("-inf")), self)
    before = op.Constant(value_ints=[1])
    for axis, cells in _last_first(rank, output_size):
        size = _size(self, axis)
        rows = op.Unsqueeze(_swapped(result, axis, rank), [-2])
        rows = op.Where(_seen(size, cells), rows, lowest)
        chosen = op.ArgMax(rows, axis=-1, keepdims=0)
        result = _swapped(op.ReduceMax(rows, [-1], keepdims=0), axis, rank)
        place = op.Mul(chosen, before)
        if places is not None:
            inner = op.GatherElements(_swapped(places, axis, rank), chosen, axis=-1)
            place = op.Add(place, inner)
        places = _swapped(place, axis, rank)
        before = op.Mul(before, size)
    return result, places


def _last_first(rank: int, cells: Sequence[Any]) -> Iterator[tuple[int, Any]]:
    """The axes that are pooled, from the last one on, with the number of their cells."""
    for place, count in enumerate(reversed(cells), start=1):
        yield rank - place, count


def _kernel(image: Any, cells: Sequence[Any]) -> list[int]:
    """The window of every cell where all have the same one; empty where sizes change."""
    sizes = list(image.shape)[-len(cells) :]
    numbers = all(isinstance(number, int) for number in (*sizes, *cells))
    if not numbers or len(image.shape) != len(cells) + 2:
        return []
    if any(size % count for size, count in zip(sizes, cells, strict=True)):
        return []
    return [size // count for size, count in zip(sizes, cells, strict=True)]


def _size(image: Any, axis: int) -> Any:
    """The size of an axis, of shape [1]."""
    return op.Shape(image, start=axis, end=axis + 1)


def _seen(size: Any, cells: Any) -> Any:
    """The elements of an axis that each of its cells sees, of shape (cells, size)."""
    # 2 cells of 5 elements: cell 0 sees 0 to 2, cell 1 sees 2 to 4
    #     1 1 1 0 0
    #     0 0 1 1 1
    count = op.Constant(value_ints=[cells]) if isinstance(cells, int) else op.Reshape(cells, [1])
    zero, one = op.Constant(value_int=0), op.Constant(value_int=1)
    cell = op.Unsqueeze(op.Range(zero, op.Squeeze(count), one), [1])
    element = op.Range(zero, op.Squeeze(size), one)
    # floor(cell * size / count), and ceil((cell + 1) * size / count)
    first = op.Div(op.Mul(cell, size), count)
    beyond = op.Mul(op.Add(cell, one), size)
    end = op.Div(op.Sub(op.Add(beyond, count), one), count)
    return op.And(op.GreaterOrEqual(element, first), op.Less(element, end))


def _swapped(image: Any, axis: int, rank: int) -> Any:
    """The axis exchanged with the last one."""
    if axis == rank - 1:
        return image
    order = list(range(rank))
    order[axis], order[-1] = order[-1], order[axis]
    return op.Transpose(image, perm=order)
