"""Python reads the values of tensors that a model makes of numbers alone, and of no others."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from onlooker import ExportError, InputObserver, RejectedCallError

Run = Callable[[torch.Tensor], Any]


class Model(torch.nn.Module):
    """Calls a function with a tensor of the shape (batch, 6)."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run

    def forward(self, x: torch.Tensor) -> Any:
        return self.run(x)


def steps_of_a_solver(x: torch.Tensor) -> torch.Tensor:
    """As torchdiffeq makes the times of a grid, and compares them."""
    times = torch.tensor([0.0, 1.0])
    assert (times[1:] > times[:-1]).all()
    count = torch.ceil((times[-1] - times[0]) / 0.25 + 1).item()
    grid = torch.arange(0, count) * 0.25 + times[0]
    for before, after in itertools.pairwise(grid):
        if after - before > 0.1:
            x = x + (after - before) * torch.tanh(x)
    return x


def places_and_numbers(x: torch.Tensor) -> torch.Tensor:
    first, second = torch.where(torch.tril(torch.ones(6, 6)) > 0)
    even = x[:, torch.arange(6) % 2 == 0]
    roots = numpy.sqrt(torch.arange(6).float().numpy())
    parts = x.split(torch.tensor([2, 1, 3]).tolist(), 1)
    total = sum(part.sum() for part in parts) * sum(torch.linspace(0, 1, 5).tolist())
    return (x[:, first] * x[:, second]).sum(1) + even.sum(1) + (x * torch.from_numpy(roots)).sum(1) + total


def in_a_loop(x: torch.Tensor) -> torch.Tensor:
    times, h = torch.linspace(0, 1, 5), x[:, 0] * 0
    for t in range(x.shape[1]):
        h = torch.tanh(h + x[:, t])
        if times[2] > 0.3:
            h = h + 1
    return h


def written(x: torch.Tensor) -> torch.Tensor:
    values = torch.zeros(3)
    values[0] = x[0, 0]
    return x * 2 if values.sum() > 0.5 else x


def written_by_a_view(x: torch.Tensor) -> torch.Tensor:
    values = torch.zeros(3)
    values[1:][0] = x[0, 0]
    return x * 2 if values.sum() > 0.5 else x


def copied(x: torch.Tensor) -> torch.Tensor:
    values = torch.ones(2)
    values.copy_(x[0, :2])
    return x * 2 if values.sum() > 0.5 else x


def an_output(x: torch.Tensor) -> torch.Tensor:
    values = torch.ones(2)
    torch.mul(x[0, :2], 2, out=values)
    return x * 2 if values.sum() > 0.5 else x


def written_by_an_array(x: torch.Tensor) -> torch.Tensor:
    values = torch.zeros(3)
    values.numpy()[0] = 5.0
    return x * 2 + values.sum()


def watched(run: Run) -> tuple[Model, Any]:
    model, observer = Model(run).eval(), InputObserver()
    with torch.no_grad(), observer(model):
        for batch in (2, 3):
            model(torch.full((batch, 6), 0.1))
    return model, observer.export()


@pytest.mark.parametrize("run", [steps_of_a_solver, places_and_numbers])
def test_the_values_of_constants_are_read(run: Run) -> None:
    model, program = watched(run)
    assert len(program.graphs) == 1
    for batch in (1, 4, 7):
        x = torch.randn(batch, 6)
        torch.testing.assert_close(program(x), model(x))
    assert program.verify().verified


@pytest.mark.slow
def test_a_constant_decides_in_the_steps_of_a_loop() -> None:
    model, program = watched(in_a_loop)
    for batch in (1, 4):
        x = torch.randn(batch, 6)
        torch.testing.assert_close(program(x), model(x))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("run", [written, written_by_a_view, copied, an_output])
@pytest.mark.slow
def test_what_is_written_to_is_no_constant(run: Run) -> None:
    model, program = watched(run)
    for value in (0.1, 7.0):
        x = torch.full((2, 6), value)
        try:
            got = program(copy.deepcopy(x))
        except RejectedCallError:
            assert value > 1
            continue
        torch.testing.assert_close(got, model(x))


def test_an_array_that_is_written_to_ends_the_export() -> None:
    with pytest.raises(ExportError, match="read-only"):
        watched(written_by_an_array)


@pytest.mark.filterwarnings("ignore:The model draws random numbers")
def test_drawn_numbers_are_no_constants() -> None:
    _, program = watched(lambda x: x * 0 + torch.bernoulli(torch.full((1000,), 0.5)).sum())
    x = torch.zeros(2, 6)
    assert program(x)[0, 0] != program(x)[0, 0]


class Recurrent(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.LSTM(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found, _ = self.layer(x)
        if not (found.abs() > 1e-6).all():
            raise ValueError("nothing was computed")
        return found * 2


@pytest.mark.one_in(2)
@pytest.mark.parametrize("seed", range(2))
def test_a_recurrent_layer_has_its_values_in_a_trace(seed: int) -> None:
    torch.manual_seed(seed)
    model, observer = Recurrent().eval(), InputObserver()
    with torch.no_grad(), observer(model):
        for length in (3, 5):
            model(torch.randn(length, 6))
    torch.use_deterministic_algorithms(True)  # fills memory that nobody has written to
    try:
        program = observer.export()
    finally:
        torch.use_deterministic_algorithms(False)
    x = torch.randn(7, 6)
    torch.testing.assert_close(program(x), model(x))
