"""The sizes that the Python of a model reads, in eager mode and in a trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from onlooker.repairs.trace_mode import reading
from onlooker.trace.size_reads import SizeReads


@pytest.mark.parametrize(
    ("read", "sizes"),
    [
        (lambda x: x.shape, (2, 5)),
        (lambda x: x.size(), (2, 5)),
        (lambda x: x.size(1), (5,)),
        (lambda x: x.dim(), (2,)),
        (lambda x: x.ndim, (2,)),
        (lambda x: x.ndimension(), (2,)),
        (len, (2,)),
        (lambda x: x.numel(), (10,)),
        (lambda x: x.nelement(), (10,)),
        (torch.numel, (10,)),
        (lambda x: x.stride(), (5, 1)),
        (lambda x: x.storage_offset(), (0,)),
        (lambda x: x.is_contiguous(), (True,)),
    ],
)
def test_every_way_to_read_a_size_is_noted(read: Callable[[torch.Tensor], Any], sizes: tuple[Any, ...]) -> None:
    reads = SizeReads()
    with reading(reads):
        read(torch.zeros(2, 5))
    assert reads.sizes == [sizes]


def test_a_result_of_an_operator_is_no_read() -> None:
    reads = SizeReads()
    with reading(reads):
        torch.zeros(2, 5).sum(0).tolist()
    assert reads.sizes == []


def test_a_trace_reads_symbols_in_the_order_of_the_model() -> None:
    found: list[tuple[Any, ...]] = []

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            reads = SizeReads()
            with reading(reads):
                n = x.shape[1]
                rank = x.squeeze(0).dim()
            found.extend(reads.sizes)
            return x * n + rank

    x = torch.zeros(3, 7)
    torch.export.export(Model(), (x,), dynamic_shapes=({1: torch.export.Dim.AUTO},), strict=False)
    (shape, rank) = found[-2:]
    assert (shape[0], rank) == (3, (2,))
    assert isinstance(shape[1], torch.SymInt)
