"""Loops that count their steps, or whose first or last step differs; and what no comparison of names shows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from fractions import Fraction

import numpy
import pytest
import torch

from onlooker import InputObserver, Program, RejectedCallError

SLOW = pytest.mark.slow


class Loop(torch.nn.Module):
    def __init__(self, run: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.layer, self.run, self.flag = torch.nn.Linear(4, 4), run, False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.run(self, x)

    def step(self, row: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.layer(row) + state)

    def states_into(self, x: torch.Tensor, found: list[torch.Tensor]) -> None:
        state = x.new_zeros(x.shape[0], 4)
        for row in x.unbind(1):
            state = self.step(row, state)
            found.append(state)

    def states(self, x: torch.Tensor) -> list[torch.Tensor]:
        state, found = x.new_zeros(x.shape[0], 4), []
        for row in x.unbind(1):
            state = self.step(row, state)
            found.append(state)
        return found


def mean_by_a_count(model: Loop, x: torch.Tensor) -> torch.Tensor:
    total, count = torch.zeros(x.shape[0], 4), 0
    for row in x.unbind(1):
        total, count = total + model.layer(row), count + 1
    return total / count


def a_count_from_the_end(model: Loop, x: torch.Tensor) -> torch.Tensor:
    state, left = x.new_zeros(x.shape[0], 4), 3 * x.shape[1]
    for t in range(x.shape[1]):
        state, left = model.step(x[:, t], state), left - 2
    return state * left


def the_index_after_it(model: Loop, x: torch.Tensor) -> torch.Tensor:
    state = x.new_zeros(x.shape[0], 4)
    for t in range(x.shape[1]):
        state = model.step(x[:, t], state)
    return state / (t + 1)


def sum_of_a_generator(model: Loop, x: torch.Tensor) -> torch.Tensor:
    return sum(torch.tanh(model.layer(row)) for row in x.unbind(1))  # type: ignore[return-value]


def no_state_at_first(model: Loop, x: torch.Tensor) -> torch.Tensor:
    state = None
    for row in x.unbind(1):
        state = torch.tanh(model.layer(row)) if state is None else model.step(row, state)
    assert state is not None
    return state


def the_first_by_its_index(model: Loop, x: torch.Tensor) -> torch.Tensor:
    found: list[torch.Tensor] = []
    state = x[:, 0]
    for t, row in enumerate(x.unbind(1)):
        state = row if t == 0 else model.step(row, state)
        found.append(state)
    return torch.stack(found, 1)


def the_last_by_its_index(model: Loop, x: torch.Tensor) -> torch.Tensor:
    state = x.new_zeros(x.shape[0], 4)
    for t in range(x.shape[1]):
        state = model.step(x[:, t], state)
        if t < x.shape[1] - 1:
            state = torch.relu(state)
    return state


SERVED = [
    mean_by_a_count,
    pytest.param(a_count_from_the_end, marks=SLOW),
    the_index_after_it,
    sum_of_a_generator,
    no_state_at_first,
    pytest.param(the_first_by_its_index, marks=SLOW),
    the_last_by_its_index,
]


def program_of(model: Loop) -> Program:
    observer = InputObserver()
    with torch.no_grad(), observer(model.eval()):
        for batch, length in ((2, 6), (3, 10), (4, 8)):
            model(torch.randn(batch, length, 4))
    program = observer.export()
    assert program.verify().verified
    return program


@pytest.mark.one_in(8)
@pytest.mark.parametrize("run", SERVED)
def test_such_a_loop_is_served_at_lengths_that_nobody_watched(run: Callable[..., torch.Tensor]) -> None:
    torch.manual_seed(0)
    model = Loop(run)
    program = program_of(model)
    for length in (3, 9, 40, 101):
        x = torch.randn(2, length, 4)
        torch.testing.assert_close(program(x), model(x))


@dataclasses.dataclass
class Counter:
    n: int = 0


def an_attribute_that_flips(model: Loop, x: torch.Tensor) -> torch.Tensor:
    state, model.flag = x.new_zeros(x.shape[0], 4), False
    for row in x.unbind(1):
        state, model.flag = model.step(row, state), not model.flag
    return state * 2 if model.flag else state


def an_item_in_a_circle(model: Loop, x: torch.Tensor) -> torch.Tensor:
    state, places = x.new_zeros(x.shape[0], 4), [0]
    for row in x.unbind(1):
        state = model.step(row, state)
        places[0] = (places[0] + 1) % 5
    return state * 2 if places[0] == 2 else state


def an_object(model: Loop, x: torch.Tensor) -> torch.Tensor:
    state, counter = x.new_zeros(x.shape[0], 4), Counter()
    for row in x.unbind(1):
        state = model.step(row, state)
        counter.n += 1
    return state * 2 if counter.n == 77 else state


def a_list_of_the_caller(model: Loop, x: torch.Tensor) -> torch.Tensor:
    found: list[torch.Tensor] = []
    model.states_into(x, found)
    return found[-1] * (2 if sum(1 for _ in found) == 77 else 1)


def a_list_that_is_returned(model: Loop, x: torch.Tensor) -> torch.Tensor:
    found = model.states(x)
    return found[-1] * (2 if sum(1 for _ in found) == 77 else 1)


def a_name_that_comes_late(model: Loop, x: torch.Tensor) -> torch.Tensor:
    state, count = x.new_zeros(x.shape[0], 4), 0
    for row in x.unbind(1):
        state, count = model.step(row, state), count + 1
        if count == 77:
            late = True
    return state * 2 if "late" in locals() and late else state


def counts_with(begun: object, one: object) -> Callable[..., torch.Tensor]:
    """A model that counts to 77 with numbers that are no ints."""

    def run(model: Loop, x: torch.Tensor) -> torch.Tensor:
        state, count = x.new_zeros(x.shape[0], 4), begun
        for row in x.unbind(1):
            state, count = model.step(row, state), count + one  # type: ignore[operator]
        is_reached = (len(count) if isinstance(count, (tuple, bytes)) else count) == 77
        return state * 2 if is_reached else state

    return run


HIDDEN = {
    "attribute": an_attribute_that_flips,
    "circle": an_item_in_a_circle,
    "object": an_object,
    "list of the caller": a_list_of_the_caller,
    "list returned": a_list_that_is_returned,
    "name": a_name_that_comes_late,
    "tuple": counts_with((), (1,)),
    "bytes": counts_with(b"", b"1"),
    "fraction": counts_with(Fraction(0), 1),
    "complex": counts_with(0j, 1),
    "array": counts_with(numpy.zeros(()), numpy.ones(())),
}


@pytest.mark.parametrize(
    "run",
    [pytest.param(run, marks=() if name in ("object", "tuple") else SLOW) for name, run in HIDDEN.items()],
    ids=HIDDEN,
)
def test_what_python_keeps_out_of_sight_is_never_wrong(run: Callable[..., torch.Tensor]) -> None:
    torch.manual_seed(0)
    model = Loop(run)
    program = program_of(model)
    refused = 0
    for length in (8, 75, 76, 77, 78, 80):
        x = torch.randn(2, length, 4)
        try:
            torch.testing.assert_close(program(x), model(x))
        except RejectedCallError:
            refused += 1
    assert refused < 6


class Membrane(torch.nn.Module):
    """Writes its state before it reads it, and makes one of the right shape in the first step."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.zeros(0), persistent=False)

    def step(self, row: torch.Tensor) -> torch.Tensor:
        if self.state.shape != row.shape:
            self.state = torch.zeros_like(row)
        self.state = 0.9 * self.state + row
        return (self.state > 1).float()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.state, spikes = torch.zeros(0), []
        for t in range(x.shape[0]):
            spike = self.step(x[t])
            spikes.append(spike)
        return torch.stack(spikes)


@pytest.mark.slow
def test_a_call_of_one_step_after_another_call_is_what_the_graph_for_one_step_gives() -> None:
    model, observer = Membrane().eval(), InputObserver()
    with observer(model), torch.no_grad():
        for shape in ((5, 2, 4), (7, 3, 4)):
            model(torch.randn(shape))
    program = observer.export()
    assert program.verify().verified
    for shape in ((1, 2, 4), (2, 3, 4), (40, 1, 4)):
        x = torch.randn(shape)
        torch.testing.assert_close(program(x), model(x))
