"""A refused call leaves nothing behind: no write, no draw of random numbers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

from onlooker import InputObserver, Program, RejectedCallError
from onlooker.serve.undoing import Undoing

Function = Callable[[torch.Tensor], Any]
TABLE = torch.rand(10, 4)


def exported(function: Function) -> tuple[torch.nn.Module, Program]:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return function(x)

    model, observer = Model(), InputObserver()
    with torch.no_grad(), observer(model):
        for rows in (2, 3, 5):
            model(torch.rand(rows, 4))
    return model, observer.export()


def writes_and_decides(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x * 2 if x.sum() > 0 else x * 3


def writes_through_a_view(x: torch.Tensor) -> torch.Tensor:
    x.view(-1)[1:].mul_(2)
    return x * 2 if x.sum() > 0 else x * 3


def writes_and_looks_up(x: torch.Tensor) -> torch.Tensor:
    ids = x[:, 0].long()
    x.mul_(2)
    return x + torch.nn.functional.embedding(ids.abs(), TABLE)


def writes_twice(x: torch.Tensor) -> torch.Tensor:
    x[0] = 5
    assert x.sum() > -100
    x[1] = 6
    return x * 2 if x.sum() > 0 else x * 3


def draws_and_decides(x: torch.Tensor) -> torch.Tensor:
    y = x + torch.rand(4)
    return y * 2 if y.sum() > 0 else y * 3


def draws_in_place_and_decides(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty(4).normal_() + x
    return y * 2 if y.sum() > -50 else y * 3


CASES = [
    *(writes_and_decides, writes_through_a_view, writes_and_looks_up, writes_twice),
    *(draws_and_decides, draws_in_place_and_decides),
]


@pytest.mark.one_in(6)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("function", CASES)
@pytest.mark.parametrize("is_installed", [False, True])
def test_a_refusal_leaves_nothing_behind(function: Function, is_installed: bool) -> None:
    model, program = exported(function)
    x = torch.full((4, 4), -90.0)
    before, state = x.clone(), torch.get_rng_state()
    place = program.installed(model) if is_installed else contextlib.nullcontext()
    called = model if is_installed else program
    with place, pytest.raises(RejectedCallError):
        called(x)
    assert torch.equal(x, before)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("function", [writes_and_decides, writes_through_a_view, draws_and_decides])
def test_the_model_itself_sees_what_the_caller_passed(function: Function) -> None:
    model, program = exported(function)
    given, theirs = torch.full((4, 4), -90.0), torch.full((4, 4), -90.0)
    torch.manual_seed(3)
    with program.installed(model, fallback=True) as installed:
        result = model(given)
    assert installed.eager == 1
    torch.manual_seed(3)
    assert torch.equal(result, model(theirs))
    assert torch.equal(given, theirs)


def draws_one_number(x: torch.Tensor) -> torch.Tensor:
    return x * 3 - x if torch.rand(()) < 0.5 else x * 3


@pytest.mark.filterwarnings("ignore")
def test_a_graph_that_runs_again_in_another_layout_draws_the_same_numbers() -> None:
    torch.manual_seed(0)  # where all watched calls draw one side, and the trace the other one, no call is served
    model, program = exported(draws_one_number)
    x, n_served = torch.rand(4, 4).t(), 0
    for seed in range(12):
        torch.manual_seed(seed)
        expected = model(x)
        torch.manual_seed(seed)
        with contextlib.suppress(RejectedCallError):
            assert torch.equal(program(x), expected)
            n_served += 1
    assert n_served


def test_only_what_may_be_left_is_copied() -> None:
    _, plain = exported(lambda x: x * 2)
    assert Undoing.of(plain.graphs[0]) is None
    _, writing = exported(lambda x: x.add_(1))
    assert Undoing.of(writing.graphs[0]) is None  # nothing refuses after the write
    _, refusing = exported(writes_and_decides)
    found = Undoing.of(refusing.graphs[0])
    assert found is not None
    assert found.written == (0,)


class OfABatch(torch.nn.Module):
    """Keeps the statistics of its batches, as in training, and decides by a value behind that."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return y if x.sum() > 0 else 2 * y


@pytest.mark.filterwarnings("ignore::onlooker.OnlookerWarning")
def test_the_statistics_of_a_refused_batch_are_taken_back() -> None:
    model, observer = OfABatch(), InputObserver()
    with torch.no_grad(), observer(model):
        for rows in (2, 3):
            model(torch.rand(rows, 4))
    program = observer.export()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(RejectedCallError):
        program(-torch.rand(3, 4))
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
