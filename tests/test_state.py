"""What a model keeps outside its inputs is put back after every probe and export, and experiments begin before it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from onlooker import InputObserver, OnlookerWarning
from onlooker.observe.state import changed_since, kept_state, read_attributes
from onlooker.probe.replay import find_doubt


class Remembers(torch.nn.Module):
    """Every call leaves something behind: a number, a list, a buffer replaced and a buffer written."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0
        self.seen: list[int] = []
        self.notes: dict[str, int] = {}
        self.register_buffer("table", torch.zeros(2))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.largest = max(self.largest, int(x.shape[1]))
        self.seen.append(1)
        self.notes["last"] = 1
        self.table = torch.ones(2)
        self.count.add_(1)
        return x * 2


def state_of(model: torch.nn.Module) -> dict[str, Any]:
    assert isinstance(model, Remembers)
    return {
        "largest": model.largest,
        "seen": list(model.seen),
        "notes": dict(model.notes),
        "table": model.table,
        "values": model.table.tolist(),
        "count": model.count.item(),
    }


@pytest.mark.parametrize("fail", [False, True], ids=["returns", "raises"])
def test_everything_that_a_run_leaves_behind_is_put_back(fail: bool) -> None:
    model = Remembers()
    seen, before = model.seen, state_of(model)

    def run() -> None:
        with kept_state(model, {}):
            model(torch.zeros(2, 7))
            assert model.largest == 7
            if fail:
                raise ZeroDivisionError

    if fail:
        with pytest.raises(ZeroDivisionError):
            run()
    else:
        run()
    assert state_of(model) == before
    assert model.seen is seen


def test_probes_exports_and_trials_leave_the_model_as_it_was() -> None:
    class Windowed(torch.nn.Module):
        """Sets its own window from the image, as some vision models do; a symbol left there would break it."""

        window = 8

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.window = min(x.shape[1], 8)
            return x[:, : self.window] * 2

    model = Windowed()
    observer = InputObserver()
    with observer(model):
        model(torch.ones(2, 9))
        model(torch.ones(3, 12))
    before = dict(vars(model))
    observer.export().verify()
    assert vars(model) == before
    assert type(model.window) is int
    torch.testing.assert_close(model(torch.ones(2, 10)), torch.full((2, 8), 2.0))


class Narrows(torch.nn.Module):
    """Its result depends on the calls before: the width only ever shrinks."""

    def __init__(self) -> None:
        super().__init__()
        self.width = 100

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] < 4:
            self.width = 1
        return x * self.width


def test_experiments_begin_from_what_stood_there_before_the_model_was_watched() -> None:
    model = Narrows()
    observer = InputObserver()
    with observer(model):
        for length in (9, 7, 3):
            model(torch.ones(2, length))
    assert model.width == 1
    program = observer.export()
    torch.testing.assert_close(program(torch.ones(2, 8)), torch.full((2, 8), 100.0))
    assert model.width == 1


def test_the_mode_of_a_model_is_the_users_own() -> None:
    model = torch.nn.Dropout()
    before = read_attributes(model)
    model.eval()
    assert changed_since(before, model) == {}


class Counter(torch.nn.Module):
    """Adds the number of its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x + self.calls


class CountsInABuffer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x + self.calls


class Table(torch.nn.Module):
    """Grows a rotary table when it needs a longer one: its results do not depend on it."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.zeros(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] > len(self.table):
            self.table = torch.arange(float(x.shape[1]))
        return x + self.table[: x.shape[1]]


class Draws(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(x.shape)


def watched(model: torch.nn.Module, n: int = 3) -> InputObserver:
    observer = InputObserver()
    with observer(model):
        for size in range(2, 2 + n):
            model(torch.rand(size, 4))
    return observer


TRAINING = {
    "dropout": lambda: torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5)),
    "batch norm": lambda: torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)),
    "one module of an evaluated model": lambda: torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout()).eval(),
}


@pytest.mark.parametrize("make", TRAINING.values(), ids=TRAINING)
def test_training_mode_is_said_where_it_matters(make: Any) -> None:
    model = make()
    model[1].train()
    doubt = find_doubt(*asked(watched(model)))
    assert doubt is not None
    assert doubt.slug == "training-mode"
    assert model[1].training
    model.eval()
    assert find_doubt(*asked(watched(model))) is None


def asked(observer: InputObserver) -> Any:
    store = observer._watcher.store()
    return store.samples, observer._subject(store)


@pytest.mark.parametrize("cls", [torch.nn.Identity, Table, lambda: torch.nn.Linear(4, 4)])
def test_results_that_depend_on_the_arguments_only_raise_no_doubt(cls: Any) -> None:
    assert find_doubt(*asked(watched(cls()))) is None


@pytest.mark.parametrize("cls", [Counter, CountsInABuffer, Draws])
@pytest.mark.parametrize("training", [False, True])
def test_results_that_depend_on_something_else_are_said(cls: Any, training: bool) -> None:
    model = cls().train(training)
    observer = watched(model)
    before, state = dict(vars(model)), torch.get_rng_state()
    doubt = find_doubt(*asked(observer))
    assert doubt is not None
    assert doubt.slug == "outputs-depend-on-earlier-calls"
    assert vars(model) == before
    assert torch.equal(torch.get_rng_state(), state)


def test_the_doubt_stands_in_the_report() -> None:
    model = Counter().eval()
    observer = watched(model)
    with pytest.warns(OnlookerWarning) as caught:
        program = observer.export()
    (warning,) = caught
    assert "call 2, run again from the state that stood before watching, differs" in str(warning.message)
    assert "Outputs depend on earlier calls" in str(program.report)
    assert model.calls == 3
