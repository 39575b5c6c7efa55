"""Tensors that nothing reads: their sizes are no condition, and they hide no batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from onlooker import InputObserver, Program


class Ignores(torch.nn.Module):
    """Takes more than it uses, as models take the outputs of an encoder."""

    def forward(self, x: torch.Tensor, others: dict[str, torch.Tensor]) -> torch.Tensor:
        return x.sum(-1) + others["used"].reshape(x.shape[0], -1).sum(-1, keepdim=True)


class IgnoresIds(torch.nn.Module):
    """Takes ids that another kind of this model would read."""

    def forward(self, x: torch.Tensor, ids: torch.Tensor | None = None) -> torch.Tensor:
        return x * 2


class ReadsTheSize(torch.nn.Module):
    """Reads no value, but a size."""

    def forward(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return x * (2 if other.shape[1] > 6 else 1)


def exported(model: torch.nn.Module, *calls: tuple[Any, ...], **options: Any) -> Program:
    observer = InputObserver()
    with observer(model), torch.no_grad():
        for call in calls:
            model(*call)
    program = observer.export(**options)
    assert program.verify().verified, program.tally.summary
    return program


@pytest.mark.parametrize("rows", [(1, 16), (1, 16, 8), (2, 6), (7, 4, 9)])
@pytest.mark.one_in(2)
def test_the_sizes_of_a_tensor_that_nothing_reads_are_no_condition(rows: tuple[int, ...]) -> None:
    def call(batch: int, length: int, extra: int) -> tuple[Any, ...]:
        shape = tuple(size + extra if place else size for place, size in enumerate(rows))
        return torch.randn(batch, length), {"unused": torch.randn(shape), "used": torch.randn(4 * batch, 3)}

    model = Ignores()
    program = exported(model, call(2, 5, 0))
    for batch, length, extra in ((3, 7, 1), (1, 9, 5), (2, 5, 8)):
        x, others = call(batch, length, extra)
        torch.testing.assert_close(program(x, others), model(x, others))


def test_ids_that_nothing_reads_may_be_longer() -> None:
    model = IgnoresIds()
    program = exported(model, (torch.randn(2, 5), torch.arange(14).reshape(2, 7)))
    for batch, length, ids in ((3, 6, 4), (1, 2, 11)):
        x = torch.randn(batch, length)
        torch.testing.assert_close(program(x, torch.ones(batch, ids, dtype=torch.int64)), model(x))


def test_a_size_that_decides_stays_a_condition() -> None:
    model = ReadsTheSize()
    program = exported(model, (torch.randn(2, 5), torch.randn(2, 5)), dynamic={"other": [1]})
    for size in (5, 6, 7, 12):
        x, other = torch.randn(3, 4), torch.randn(3, size)
        torch.testing.assert_close(program(x, other), model(x, other))
