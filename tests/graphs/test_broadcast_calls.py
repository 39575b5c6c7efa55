"""Masks and biases that are whole in one call and of size 1 in another one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from onlooker import InputObserver
from onlooker.infer.broadcast import broadcast_groups

Shapes = tuple[tuple[int, ...], ...]


def masked(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return x.masked_fill((mask > 0).expand(x.shape), 0.0)


def biased(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x + bias)


def attending(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    scores = torch.einsum("bid,bjd->bij", x, x).unsqueeze(1) + mask
    return scores.softmax(-1)


def observed(function: Callable[..., torch.Tensor], calls: list[Shapes]) -> tuple[InputObserver, torch.nn.Module]:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
            return function(x, other)

    model, observer = Model(), InputObserver()
    with observer(model), torch.no_grad():
        for shapes in calls:
            model(*(torch.randn(shape) for shape in shapes))
    return observer, model


@pytest.mark.parametrize(
    ("function", "watched", "unseen"),
    [
        (
            masked,
            [((5, 10, 6), (5, 10, 6)), ((5, 9, 7), (5, 9, 1)), ((4, 10, 5), (4, 1, 5))],
            [((3, 8, 9), (3, 8, 9)), ((7, 4, 2), (7, 4, 1)), ((2, 6, 5), (2, 1, 5))],
        ),
        (
            biased,
            [((4, 7), (4, 7)), ((5, 8), (1, 8)), ((3, 9), (3, 9)), ((6, 7), (1, 7))],
            [((2, 11), (2, 11)), ((9, 3), (1, 3))],
        ),
        (
            attending,
            [((2, 5, 4), (2, 1, 5, 5)), ((3, 6, 4), (1, 1, 6, 6))],
            [((4, 7, 4), (4, 1, 7, 7)), ((5, 3, 4), (1, 1, 3, 3))],
        ),
    ],
)
def test_whole_and_broadcast_calls_are_served_at_unseen_sizes(
    function: Callable[..., torch.Tensor], watched: list[Shapes], unseen: list[Shapes]
) -> None:
    observer, model = observed(function, watched)
    program = observer.export()
    assert program.verify().verified, program.report
    for shapes in unseen:
        inputs = [torch.randn(shape) for shape in shapes]
        torch.testing.assert_close(program(*inputs), model(*inputs))


def test_calls_are_grouped_by_the_axes_that_are_broadcast() -> None:
    observer, _ = observed(masked, [((4, 7), (4, 7)), ((5, 7), (5, 1)), ((6, 3), (1, 3)), ((2, 8), (2, 1))])
    groups = broadcast_groups(observer.recording().calls)
    found = {tuple(sorted(map(str, axes))): [call.index for call in calls] for calls, axes in groups}
    assert found == {(): [0], ("other.shape[1]",): [1, 3], ("other.shape[0]",): [2]}


def test_a_batch_of_one_is_no_broadcasting() -> None:
    observer, _ = observed(masked, [((4, 7), (4, 7)), ((1, 5), (1, 5)), ((3, 6), (3, 6))])
    assert broadcast_groups(observer.recording().calls) == []
