"""Tensors of lists of tensors, and of the same memory, are traced."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from onlooker import InputObserver
from onlooker.repairs.trace_mode import reading
from onlooker.repairs.untraced_tensors import UntracedTensors

Run = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Model(torch.nn.Module):
    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return self.run(x, lengths)


def of_tensors(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return x * torch.tensor([x.sum(), x.mean()]).sum()


def of_ints(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor([lengths.max(), lengths.min()], dtype=torch.int32)


def of_lists(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return torch.tensor([[x[0, 0, 0], x.shape[1]], [x[0, 0, 1:2], 2.0]])


def of_rows(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return torch.tensor([one * 2 for one in lengths])


def of_steps(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    total, rows = x.new_zeros(()), []
    for t in range(x.shape[1]):
        total = torch.tensor([total, x[:, t].mean()]).sum()
        rows.append(total)
    return torch.tensor(rows)


def of_the_same_memory(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    scores, mask = x * 2, torch.arange(x.shape[1])[None] >= lengths[:, None]
    scores.data.masked_fill_(mask.unsqueeze(-1).data, -1.0)
    return scores.softmax(1) + x.data.new_zeros(x.size(0), 1, 1) + x.data.sum()


def of_the_same_memory_by_values(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return lengths.type_as(x.data) + 1 if x.data.sum() < 1e9 else x


def call(batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(batch * 100 + length)
    lengths = torch.randint(1, length + 1, (batch,), generator=generator)
    return torch.rand(batch, length, 4, generator=generator), lengths


@pytest.mark.parametrize(
    "run",
    [
        of_tensors,
        of_ints,
        of_lists,
        of_rows,
        of_steps,
        of_the_same_memory,
        of_the_same_memory_by_values,
    ],
)
@pytest.mark.one_in(2)
def test_such_tensors_are_one_graph_for_all_sizes(run: Run) -> None:
    model, observer = Model(run).eval(), InputObserver()
    with torch.no_grad(), observer(model):
        model(*call(2, 5))
        model(*call(3, 8))
    program = observer.export()
    for batch, length in ((4, 11), (2, 3), (5, 6)):
        x, lengths = call(batch, length)
        torch.testing.assert_close(program(x, lengths), model(x, lengths), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "values",
    [
        [torch.tensor(2), 1.5],
        [torch.tensor(2), True],
        [torch.tensor(True), torch.tensor(2.0, dtype=torch.float64)],
        [torch.tensor([1.0]), torch.tensor(2)],
        [torch.tensor([[1.0]])],
        [[torch.tensor(2), torch.tensor(3)], [1, 2]],
        (torch.tensor(2.0, dtype=torch.float16), 3),
        [torch.tensor(2.0), 1j],
        [torch.tensor(2, dtype=torch.int8), torch.tensor(3, dtype=torch.uint8)],
    ],
    ids=str,
)
def test_the_dtype_is_that_of_torch(values: object) -> None:
    for make in (torch.tensor, torch.as_tensor, torch.ones(1, dtype=torch.complex64).new_tensor):
        expected = make(values)
        with reading(UntracedTensors()):
            found = make(values)
        torch.testing.assert_close(found, expected)
