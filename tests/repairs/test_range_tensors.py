"""A tensor of the numbers of a range of a size: one graph for all sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from onlooker import InputObserver, OnlookerError


def backwards(x: torch.Tensor) -> torch.Tensor:
    return x * torch.tensor(list(range(x.shape[1] - 2))[::-1], device=x.device)[None, :1]


def in_a_comprehension(x: torch.Tensor) -> torch.Tensor:
    return x * torch.tensor([i for i in range(x.shape[1])], dtype=torch.float32)  # noqa: C416


def of_a_range(x: torch.Tensor) -> torch.Tensor:
    return x * torch.as_tensor(range(3, x.shape[1] + 3))


def counted_down(x: torch.Tensor) -> torch.Tensor:
    return x * torch.tensor(tuple(reversed(range(x.shape[1] - 1, -1, -1))))


def all_backwards(x: torch.Tensor) -> torch.Tensor:
    places = torch.tensor(list(range(x.shape[1]))[::-1], device=x.device)
    return x * places[None, :].repeat(x.shape[0], 1)


class Placed(torch.nn.Module):
    """Computes with the numbers of a range that it writes in some way."""

    def __init__(self, place: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.place = place

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.place(x)


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def exported(model: torch.nn.Module, *calls: torch.Tensor) -> Any:
    observer = InputObserver()
    with observer(model), torch.no_grad():
        for call in calls:
            model(call)
    return observer.export()


@pytest.mark.parametrize(
    "place",
    [backwards, in_a_comprehension, of_a_range, counted_down, all_backwards],
    ids=lambda place: place.__name__,
)
@pytest.mark.one_in(2)
def test_a_tensor_of_a_range_is_of_any_size(place: Callable[[torch.Tensor], torch.Tensor]) -> None:
    model = Placed(place)
    program = exported(model, rand(2, 7), rand(3, 9))
    assert len(program.graphs) == 1
    for shape in ((2, 11), (4, 19), (1, 4)):
        assert torch.equal(program(rand(*shape)), model(rand(*shape))), shape
    assert program.verify().verified


def summed(x: torch.Tensor) -> torch.Tensor:
    numbers = [i for i in range(x.shape[1]) if i % 3]
    return x * torch.tensor(numbers).sum()


def squared(x: torch.Tensor) -> torch.Tensor:
    return x * torch.tensor([i * i for i in range(x.shape[1])])


def kept(x: torch.Tensor) -> torch.Tensor:
    numbers = list(range(x.shape[1]))
    return x * torch.tensor(numbers) * len(numbers)


@pytest.mark.parametrize("place", [summed, squared, kept], ids=lambda place: place.__name__)
def test_a_list_that_is_more_than_a_range_has_the_sizes_of_its_example(
    place: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    model = Placed(place)
    program = exported(model, rand(2, 7), rand(3, 9))
    for shape in ((2, 7), (3, 9)):
        assert torch.equal(program(rand(*shape)), model(rand(*shape))), shape
    with pytest.raises(OnlookerError, match="range"):
        program(rand(2, 11))
