"""The functions by which torch's converter makes ONNX of operators: those that it lacks, and its own.

A translation may go when the installed converter has a function of its own: it would take the place
of that one. Upstream:
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/onnx/_internal/exporter/_compat.py, the
argument ``custom_translation_table`` of ``torch.onnx.export``.
"""

from __future__ import annotations

import contextlib
import copy
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ....patches.swap import swapped

__all__ = ["functions_read_once", "translations"]

#: the converter's own functions, by the arguments with which they were read
_read: dict[tuple[Any, ...], Any] = {}


def translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """The functions by operator, for ``torch.onnx.export``; those of transformers once it has
    defined them.
    """
    from .asserted import asserted, is_all_true, is_any_true
    from .doubles import OF_NUMBERS
    from .grouped import grouped_mm, grouped_mm_fallback
    from .pooled import largest_of_cells, mean_of_cells
    from .recurrent import gru, lstm, rnn_relu, rnn_tanh
    from .widened import (
        einsum,
        in_order,
        index,
        index_put,
        of_a_size,
        power_of_a_size,
        rolled,
        squeezed,
    )

    table: dict[Callable[..., Any], Callable[..., Any]] = {
        **OF_NUMBERS,
        asserted: asserted,
        torch.ops.aten._adaptive_avg_pool2d.default: mean_of_cells,
        torch.ops.aten._adaptive_avg_pool3d.default: mean_of_cells,
        torch.ops.aten._grouped_mm.default: grouped_mm,
        torch.ops.aten._is_all_true.default: is_all_true,
        torch.ops.aten._is_any_true.default: is_any_true,
        torch.ops.aten._unsafe_index.Tensor: index,
        torch.ops.aten._unsafe_index_put.default: index_put,
        torch.ops.aten.adaptive_max_pool2d.default: largest_of_cells,
        torch.ops.aten.adaptive_max_pool3d.default: largest_of_cells,
        torch.ops.aten.einsum.default: einsum,
        torch.ops.aten.gru.input: gru,
        torch.ops.aten.index.Tensor: index,
        torch.ops.aten.index_put.default: index_put,
        torch.ops.aten.lstm.input: lstm,
        torch.ops.aten.mul.Scalar: of_a_size("aten_mul_scalar", "aten_mul"),
        torch.ops.aten.pow.Scalar: power_of_a_size,
        torch.ops.aten.pow.Tensor_Scalar: of_a_size("aten_pow_tensor_scalar", "aten_pow"),
        torch.ops.aten.remainder.Scalar: of_a_size("aten_remainder_scalar", "aten_remainder"),
        torch.ops.aten.rnn_relu.input: rnn_relu,
        torch.ops.aten.rnn_tanh.input: rnn_tanh,
        torch.ops.aten.roll.default: rolled,
        torch.ops.aten.sort.stable: in_order,
        torch.ops.aten.squeeze.default: squeezed,
        torch.ops.aten.squeeze.dim: squeezed,
        torch.ops.aten.squeeze.dims: squeezed,
    }
    if hasattr(torch.ops.transformers, "grouped_mm_fallback"):
        table[torch.ops.transformers.grouped_mm_fallback.default] = grouped_mm_fallback
    return table


@contextlib.contextmanager
def functions_read_once() -> Iterator[None]:
    """Inside the block the converter takes its own functions as an earlier conversion has read them.

    torch parses the source of all 500 in each conversion, which takes 0.35 s. Upstream:
    https://github.com/pytorch/pytorch/blob/v2.13.0/torch/onnx/_internal/exporter/_registration.py,
    ``ONNXRegistry.from_torchlib``; it may go when that keeps what it has read.
    """
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    def read(_: type[ONNXRegistry], *args: Any, **kwargs: Any) -> Any:
        # operators of torchvision have functions once it has been imported
        key = (*args, *sorted(kwargs.items()), "torchvision" in sys.modules)
        if key not in _read:
            _read[key] = before(*args, **kwargs)
        registry = copy.copy(_read[key])
        registry.functions = {name: list(known) for name, known in registry.functions.items()}
        return registry

    with swapped(ONNXRegistry, "from_torchlib", classmethod(read)) as before:
        yield
