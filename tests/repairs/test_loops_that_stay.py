"""Loops that are no scan say in one sentence why; a loop in such a loop is one all the same."""

from __future__ import annotations

import array
import io
import math
import queue
import random
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from onlooker import InputObserver, Program, RejectedCallError


def exported(run: Callable[[torch.Tensor], torch.Tensor], *shapes: tuple[int, ...]) -> tuple[Program, torch.nn.Module]:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return run(x)

    model, observer = Model(), InputObserver()
    with observer(model), torch.no_grad():
        for shape in shapes:
            model(torch.randn(shape))
    return observer.export(to="torch"), model


def by_a_power(x: torch.Tensor) -> torch.Tensor:
    state = torch.zeros(x.shape[0], x.shape[2])
    for t in range(x.shape[1]):
        state = torch.tanh(state + x[:, t] * 2**t)
    return state


def by_a_remainder(x: torch.Tensor) -> torch.Tensor:
    state = torch.zeros(x.shape[0], x.shape[2])
    for t in range(x.shape[1]):
        state = torch.tanh(state + x[:, t]) if t % 3 else state
    return state


def growing(x: torch.Tensor) -> torch.Tensor:
    state = x[:, :1]
    for t in range(1, x.shape[1]):
        state = torch.cat([state, torch.tanh(state.mean(1, keepdim=True) + x[:, t : t + 1])], 1)
    return state


def counted(x: torch.Tensor) -> torch.Tensor:
    state, results = torch.zeros(x.shape[0], x.shape[2]), []
    for t in range(x.shape[1]):
        state = torch.tanh(state + x[:, t])
        results.append(state)
    return state * 2 if results[3:] else state


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (by_a_power, "computes a number from its index, which is another constant in each step"),
        (by_a_remainder, "what a step does depends on its index"),
        (growing, "a state has another shape after a step"),
        (counted, "a list that is read in another way than by torch.stack, torch.cat or [-1]: results is read in line"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
@pytest.mark.parametrize("lengths", [(5, 7), (6, 9)])
@pytest.mark.one_in(4)
def test_a_loop_that_is_no_scan_says_why(
    run: Callable[[torch.Tensor], torch.Tensor], reason: str, lengths: tuple[int, int]
) -> None:
    """Also where the graph that was traced first, at other sizes, is none of the program."""
    program, model = exported(run, *((rows, length, 4) for rows, length in enumerate(lengths, 2)))
    for graph in program.graphs:
        (note,) = (note for note in graph.notes if "no scan of torch" in note)
        assert reason in note
        assert "\n" not in note
    for length in lengths:
        x = torch.randn(2, length, 4)
        torch.testing.assert_close(program(x), model(x))


def nested(x: torch.Tensor) -> torch.Tensor:
    state = torch.zeros(x.shape[0], x.shape[3])
    for t in range(x.shape[1]):
        for k in range(x.shape[2]):
            state = torch.tanh(state * 0.5 + x[:, t, k])
    return state


@pytest.mark.slow
def test_a_loop_in_a_loop_takes_all_lengths_for_each_watched_one_of_the_outer_loop() -> None:
    program, model = exported(nested, (2, 3, 5, 4), (3, 4, 6, 4))
    for shape in ((4, 3, 9, 4), (1, 4, 2, 4), (2, 3, 1, 4)):
        x = torch.randn(shape)
        torch.testing.assert_close(program(x), model(x))
    with pytest.raises(RejectedCallError):
        program(torch.randn(2, 7, 5, 4))
    assert program.verify().verified


def test_a_loop_in_code_without_a_file_stays() -> None:
    """Nobody sees what its names stand for from step to step."""
    exec(
        "def without_a_file(x):\n"
        "    state, count = torch.zeros(x.shape[0], x.shape[2]), 0\n"
        "    for t in range(x.shape[1]):\n"
        "        state, count = torch.tanh(state + x[:, t]), count + 1\n"
        "    return state * 2 if 40 < count < 50 else state\n",
        globals(),
    )
    program, model = exported(globals()["without_a_file"], (2, 5, 4), (3, 7, 4))
    for length in (5, 7, 45):
        x = torch.randn(2, length, 4)
        try:
            got = program(x)
        except RejectedCallError:
            assert length == 45
            continue
        torch.testing.assert_close(got, model(x))


class Counts:
    def __init__(self) -> None:
        self.n = 0


class CountsInALayer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n = 0

    def forward(self, state: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        self.n += 1
        return torch.tanh(state + row)


class PutsBeforeItsLoop(torch.nn.Module):
    """Gives itself what its steps count in, before they do."""

    held: object

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = torch.zeros_like(x[:, 0])
        counts, cell, rows = Counts(), CountsInALayer(), set[int]()
        if self.kind == "object":
            self.held = counts
        elif self.kind == "set":
            self.held = rows
        for t, row in enumerate(x.unbind(1)):
            state = cell(state, row) if self.kind == "layer" else torch.tanh(state + row)
            if self.kind == "object":
                self.held.n += 1  # type: ignore[attr-defined]
            elif self.kind == "set":
                self.held.add(id(state) if t < 0 else len(self.held))  # type: ignore[attr-defined]
        count = {"object": counts.n, "layer": cell.n, "set": len(rows)}[self.kind]
        return state * 2 if count % 32 == 0 else state


@pytest.mark.parametrize("kind", ["object", pytest.param("layer", marks=pytest.mark.slow), "set"])
def test_a_loop_that_counts_in_what_the_call_made_stays(kind: str) -> None:
    _is_right_or_refused(PutsBeforeItsLoop(kind))


def at_a_tensor(tensor: Any) -> None:
    tensor.calls = getattr(tensor, "calls", 0) + 1


def at_a_module(tensor: Any) -> None:
    math.calls += 1  # type: ignore[attr-defined]


def by_writes(tensor: Any) -> None:
    tensor += 1


def in_a_file(tensor: Any) -> None:
    tensor.file.write("a")


def in_numbers(tensor: Any) -> None:
    tensor.numbers[0] += 1


def in_a_queue(tensor: Any) -> None:
    tensor.queue.put(1)


def by_draws(tensor: Any) -> None:
    random.random()


def by_draws_of_its_own(tensor: Any) -> None:
    tensor.generator.random()


#: how steps count, and what reads the count
COUNTS: dict[Callable[[Any], None], Callable[[Any], Any]] = {
    at_a_tensor: lambda tensor: tensor.calls,
    at_a_module: lambda _: math.calls,  # type: ignore[attr-defined]
    by_writes: lambda tensor: tensor._version,
    in_a_file: lambda tensor: tensor.file.tell(),
    in_numbers: lambda tensor: tensor.numbers[0],
    in_a_queue: lambda tensor: tensor.queue.qsize(),
    by_draws: lambda _: _number_of_draw(random.random(), random.Random(0)),
    by_draws_of_its_own: lambda tensor: _number_of_draw(tensor.generator.random(), numpy.random.default_rng(0)),
}


def _number_of_draw(drawn: float, source: Any) -> int:
    return [source.random() for _ in range(140)].index(drawn)


class CountsElsewhere(torch.nn.Module):
    """Counts its steps in what is no container, no object of the model and no name of the frame."""

    def __init__(self, count: Callable[[Any], None]) -> None:
        super().__init__()
        self.count = count

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tensor: Any = torch.zeros(1)
        tensor.file, tensor.numbers = io.StringIO(), array.array("i", [0])
        tensor.queue, tensor.generator = queue.SimpleQueue(), numpy.random.default_rng(0)
        math.calls = 0  # type: ignore[attr-defined]
        random.seed(0)
        state = torch.zeros_like(x[:, 0])
        for row in x.unbind(1):
            state = torch.tanh(state + row)
            self.count(tensor)
        return state * 2 if COUNTS[self.count](tensor) % 32 == 0 else state


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.one_in(4)
def test_a_loop_that_counts_elsewhere_stays(count: Callable[[Any], None]) -> None:
    _is_right_or_refused(CountsElsewhere(count))


def _is_right_or_refused(model: torch.nn.Module) -> None:
    observer = InputObserver()
    with observer(model), torch.no_grad():
        model(torch.randn(2, 5, 3))
        model(torch.randn(2, 9, 3))
    program = observer.export(to="torch")
    for length in (5, 9, 32):
        x = torch.randn(2, length, 3)
        try:
            got = program(x)
        except RejectedCallError:
            assert length == 32
            continue
        torch.testing.assert_close(got, model(x))
