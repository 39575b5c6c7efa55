"""The sizes that the Python of a model reads from tensors, in their order.

The decisions of a trace are about these sizes. An operator that decides anew at sizes of 0 and 1
may give a tensor of another shape (``x.squeeze(0)``), and then the model decides by another size,
even where nothing else is computed from that tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ..repairs.trace_mode import Reader

__all__ = ["READS", "SizeReads"]

#: functions of torch that tell sizes
READS = frozenset(
    {
        torch.Tensor.shape.__get__,  # type: ignore[attr-defined]
        torch.Tensor.ndim.__get__,  # type: ignore[attr-defined]
        torch.Tensor.size,
        torch.Tensor.dim,
        torch.Tensor.ndimension,
        torch.Tensor.numel,
        torch.Tensor.nelement,
        torch.Tensor.__len__,
        torch.Tensor.stride,
        torch.Tensor.storage_offset,
        torch.Tensor.is_contiguous,
        torch.numel,
    }
)


class SizeReads(Reader):
    """Inside the block every read is noted: ``sizes`` has the numbers of each, symbolic ones in a
    trace.
    """

    functions = READS

    def __init__(self) -> None:
        self.sizes: list[tuple[Any, ...]] = []

    def on_call(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Notes the sizes that a function gives."""
        result = func(*args, **kwargs)
        self.sizes.append(tuple(_numbers(result)))
        return result


def _numbers(result: Any) -> Iterator[Any]:
    if isinstance(result, Sequence):
        for item in result:
            yield from _numbers(item)
    else:
        yield result
