"""Grouped matrix products as functions of ONNX: what the experts of a mixture compute with.

The rows of ``input`` are sorted by group, and ``ends`` says where each group ends:
``(rows, k) x (groups, k, n)`` gives ``(rows, n)``. A loop visits the groups that have rows: the
graph is of one size for any number of groups, no weight is read in vain, and none is held twice.
Rows behind the last group are zeros.

Milliseconds on one core in float32, medians, for 2, 64 and 512 rows:

====================================== ====================== ======================
..                                     8 groups, 512 x 1792   64 groups, 512 x 448
====================================== ====================== ======================
the loop in Python that torch runs     1.3, 6.3, 14.6         0.5, 5.1, 10.3
this loop                              1.3, 4.6, 12.9         0.3, 3.8, 8.2
a product a group, written out         0.7, 2.6, 10.1         0.4, 2.6, 5.1
one product of padded groups           2.4, 5.6, 14.0         5.1, 8.9, 12.3
weights gathered for each row          1.7, 38, not run       0.3, 9.8, not run
====================================== ====================== ======================

What is written out is faster, since ONNX Runtime makes a second copy of all weights when it loads
it (149 MiB more for 112 MiB of weights, where the loop needs 9), and has nine times the nodes at 64
groups.
"""

from __future__ import annotations

from typing import Any

from onnxscript import INT64, script
from onnxscript import opset18 as op
from onnxscript.onnx_types import TensorType
from onnxscript.values import Opset

__all__ = ["grouped_mm", "grouped_mm_fallback"]

_DOMAIN = Opset("onlooker", 1)
_BFLOAT16, _FLOAT = 16, 1  # numbers of onnx.TensorProto
_LAST_TWO = [0, 2, 1]


@script(_DOMAIN, default_opset=op)  # type: ignore[untyped-decorator]
def rows_by_group(
    rows: TensorType, weight: TensorType, ends: INT64, transposed: int, dtype: int
) -> TensorType:
    """``rows[start:end] @ weight[group]`` under one another; ``transposed`` weights are
    ``(groups, n, k)``.
    """
    none = op.Constant(value_ints=[0])
    one = op.Constant(value_ints=[1])
    last = op.Constant(value_ints=[-1])
    bounds = op.Concat(none, op.Cast(ends, to=7), axis=0)
    counts = op.Sub(
        op.Slice(bounds, one, op.Shape(bounds), none), op.Slice(bounds, none, last, none)
    )
    used = op.Reshape(op.NonZero(counts), last)
    left = op.Sub(op.Shape(rows, start=0, end=1), op.Gather(bounds, last))
    width = op.Gather(
        op.Shape(weight), op.Sub(op.Constant(value_ints=[2]), op.Constant(value_int=transposed))
    )
    nothing = op.Cast(
        op.Expand(op.Constant(value_float=0.0), op.Concat(left, width, axis=0)), to=dtype
    )
    pieces = op.SequenceConstruct(nothing)
    for i in range(op.Size(used)):
        group = op.Gather(used, i)
        start = op.Reshape(op.Gather(bounds, group), one)
        end = op.Reshape(op.Gather(bounds, op.Add(group, op.Constant(value_int=1))), one)
        piece = op.Cast(op.Slice(rows, start, end, none), to=dtype)
        product = op.Gemm(piece, op.Cast(op.Gather(weight, group), to=dtype), transB=transposed)
        pieces = op.SequenceInsert(pieces, product, i)
    return op.ConcatFromSequence(pieces, axis=0)


@script(_DOMAIN, default_opset=op)  # type: ignore[untyped-decorator]
def columns_by_group(left: TensorType, right: TensorType, ends: INT64, dtype: int) -> TensorType:
    """``left[:, start:end] @ right[start:end]`` behind one another: ``(m, k) x (k, n)`` gives
    ``(groups, m, n)``.
    """
    none = op.Constant(value_ints=[0])
    one = op.Constant(value_ints=[1])
    bounds = op.Concat(none, op.Cast(ends, to=7), axis=0)
    pieces = op.SequenceEmpty(dtype=dtype)
    for i in range(op.Size(ends)):
        start = op.Reshape(op.Gather(bounds, i), one)
        end = op.Reshape(op.Gather(bounds, op.Add(i, op.Constant(value_int=1))), one)
        first = op.Cast(op.Slice(left, start, end, one), to=dtype)
        second = op.Cast(op.Slice(right, start, end, none), to=dtype)
        pieces = op.SequenceInsert(pieces, op.Gemm(first, second))
    return op.ConcatFromSequence(pieces, axis=0, new_axis=1)


def grouped_mm_fallback(input: Any, weight: Any, offs: Any) -> Any:
    """``transformers::grouped_mm_fallback``: ``(rows, k) x (groups, k, n)``, rows behind the
    last end are zeros.
    """
    dtype = _computed(input)
    stored, transposed = _as_stored(weight)
    return _as(input, rows_by_group(input, stored, offs, transposed=transposed, dtype=dtype), dtype)


def grouped_mm(
    self: Any, mat2: Any, offs: Any = None, bias: Any = None, out_dtype: int | None = None
) -> Any:
    """``aten::_grouped_mm``: groups of rows, of columns, of what is summed, or one product a group.

    torch takes neither ``bias`` nor another ``out_dtype`` yet.
    """
    dtype = _computed(self)
    ranks = (len(self.shape), len(mat2.shape))
    if ranks == (2, 3):
        return grouped_mm_fallback(self, mat2, offs)
    if ranks == (3, 2):
        columns = op.Transpose(mat2, perm=[1, 0])
        product = rows_by_group(columns, self, offs, transposed=1, dtype=dtype)
        return _as(self, op.Transpose(product, perm=[1, 0]), dtype)
    if ranks == (2, 2):
        return _as(self, columns_by_group(self, mat2, offs, dtype=dtype), dtype)
    return _as(self, op.MatMul(op.Cast(self, to=dtype), op.Cast(mat2, to=dtype)), dtype)


def _computed(value: Any) -> int:
    """The dtype of the products: sequences and the products of ONNX Runtime on the CPU know no
    bfloat16.
    """
    dtype = int(value.dtype)
    return _FLOAT if dtype == _BFLOAT16 else dtype


def _as(like: Any, product: Any, dtype: int) -> Any:
    return product if dtype == int(like.dtype) else op.CastLike(product, like)


def _as_stored(weight: Any) -> tuple[Any, int]:
    """The weight before it was transposed, and 1; or as it is, and 0.

    A transposed weight would be all of it once more in memory; a product of one group transposes
    for nothing.
    """
    maker = weight.producer()
    order = (
        maker.attributes.get("perm") if maker is not None and maker.op_type == "Transpose" else None
    )
    if order is not None and list(order.value) == _LAST_TWO:
        return maker.inputs[0], 1
    return weight, 0
