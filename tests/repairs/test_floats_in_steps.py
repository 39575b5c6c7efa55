"""Loops whose steps compute with a float that is no constant: an argument of the model, or a quotient of sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from onlooker import InputObserver, Program


class Smoothed(nn.Module):
    def forward(self, x: torch.Tensor, weight: float = 0.3) -> torch.Tensor:
        mean = x[:, 0]
        means = [mean]
        for t in range(1, x.shape[1]):
            mean = weight * x[:, t] + (1 - weight) * mean
            means.append(mean)
        return torch.stack(means, 1)


class Discounted(nn.Module):
    """Advantages of actions, from the last one back, by two floats."""

    def forward(self, x: torch.Tensor, discount: float = 0.9, trace: float = 0.5) -> torch.Tensor:
        found, last = torch.zeros_like(x), torch.zeros_like(x[:, 0])
        for t in reversed(range(x.shape[1] - 1)):
            last = x[:, t] + discount * x[:, t + 1] + discount * trace * last
            found[:, t] = last
        return found


class Solved(nn.Module):
    """Steps of a solver, whose width is an argument."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor, step: float = 0.1) -> torch.Tensor:
        state, path = x[:, 0], []
        for _ in range(x.shape[1]):
            state = state + step * torch.tanh(self.layer(state)) * (1.0 / (1 + step))
            path.append(state * (state > step))
        return torch.stack(path, 1)


class Averaged(nn.Module):
    """A weight that is the same for each row: one over their number."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, mean = 1 / x.shape[1], x[:, 0] * 0
        for t in range(x.shape[1]):
            mean = mean * (1 - weight) + x[:, t] * weight
        return mean


MODELS: dict[type[nn.Module], list[tuple[float, ...]]] = {
    Smoothed: [(0.3,), (0.5,), (-1.5,), (1e-3,)],
    Discounted: [(0.9, 0.5), (0.8, 0.25), (0.1, 2.0)],
    Solved: [(0.1,), (0.2,), (0.7,)],
    Averaged: [(), (), ()],
}


def exported(model: nn.Module, *calls: tuple[Any, ...]) -> Program:
    observer = InputObserver()
    with observer(model), torch.no_grad():
        for call in calls:
            model(*call)
    return observer.export()


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.one_in(2)
def test_a_loop_with_a_float_is_one_graph_for_all_lengths(kind: type[nn.Module]) -> None:
    model, (first, second, *others) = kind().eval(), MODELS[kind]
    program = exported(model, (torch.randn(2, 9, 3), *first), (torch.randn(3, 7, 3), *second))
    assert program.verify().verified, program.tally.summary
    converted = program.to("onnx")
    assert converted.verify().verified, converted.tally.summary
    for length in (4, 8, 20):
        for floats in others:
            x = torch.randn(2, length, 3)
            with torch.no_grad():
                expected = model(x, *floats)
            assert torch.equal(program(x, *floats), expected)
            torch.testing.assert_close(converted(x, *floats), expected)


def test_floats_beside_numbers_of_fewer_bits_stay_a_graph_for_each_length() -> None:
    # torch computes ``weight * x`` with the float itself there, and a tensor has it rounded
    model = Smoothed()
    rows = [torch.randn(2, length, 3, dtype=torch.float16) for length in (5, 7, 6)]
    program = exported(model, (rows[0], 0.3), (rows[1], 0.5))
    assert program.verify().verdict.startswith("serves the watched sizes of x.shape[1] alone: verified")
    assert torch.equal(program(rows[0], 0.7), model(rows[0], 0.7))
