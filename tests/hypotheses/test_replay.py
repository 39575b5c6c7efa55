"""Recorded calls that are run again: hidden state, training mode, and what they say of the results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from onlooker import ExportError, InputObserver, OnlookerWarning
from onlooker.hypotheses.calls.replay import find_doubt


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
    return store.samples, observer._lab(store)


@pytest.mark.parametrize("cls", [torch.nn.Identity, Table, lambda: torch.nn.Linear(4, 4)])
def test_results_that_depend_on_the_arguments_only_raise_no_doubt(cls: Any) -> None:
    assert find_doubt(*asked(watched(cls()))) is None


@pytest.mark.parametrize("training", [False, True])
def test_results_that_depend_on_something_else_are_said(training: bool) -> None:
    model = Draws().train(training)
    observer = watched(model)
    before, state = dict(vars(model)), torch.get_rng_state()
    doubt = find_doubt(*asked(observer))
    assert doubt is not None
    assert doubt.slug == "random-numbers"
    assert vars(model) == before
    assert torch.equal(torch.get_rng_state(), state)


class LastFrames(torch.nn.Module):
    """A convolution over a stream, which keeps the last frames of the call before."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv1d(1, 1, 3)
        self.frames: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = x.new_zeros(4, 2) if self.frames is None else self.frames
        whole = torch.cat([before, x.T], 1)
        self.frames = whole[:, -2:]
        return self.conv(whole.unsqueeze(1))


class InALayer(torch.nn.Module):
    """The attribute stands in a submodule; two others are written as well, and read by nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = LastFrames()
        self.seen: list[torch.Tensor] = []
        self.last: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(x)
        self.last = self.layer(x)
        return self.last


class DrawsAndCounts(Draws):
    """Counts its calls; its results depend on random numbers, and not on the count."""

    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x)


KEEPS = {
    "an int": (Counter, "calls"),
    "a buffer": (CountsInABuffer, "calls"),
    "None at first": (LastFrames, "frames"),
    "in a submodule": (InALayer, "layer.frames"),
}


@pytest.mark.parametrize(("cls", "name"), KEEPS.values(), ids=KEEPS)
@pytest.mark.parametrize("training", [False, True])
def test_a_model_that_reads_what_its_calls_write_is_refused_by_the_name_of_the_attribute(
    cls: Any, name: str, training: bool
) -> None:
    model = cls().train(training)
    observer = watched(model)
    before, state = dict(vars(model)), torch.get_rng_state()
    with pytest.raises(ExportError) as caught:
        observer.export()
    assert caught.value.slug == "model-keeps-state"
    assert f"its calls read {name}, and write it for the next call" in caught.value.message
    assert "state=True" in caught.value.hint
    assert vars(model) == before
    assert torch.equal(torch.get_rng_state(), state)


class LongCallsCount(torch.nn.Module):
    """A long call puts another buffer there, which short calls read."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] > 23:
            self.mean = x.mean().detach()
        return x * (self.mean + 1)


def test_a_call_in_the_middle_may_write_what_the_last_one_reads() -> None:
    model, observer = LongCallsCount(), InputObserver()
    with torch.no_grad(), observer(model):
        for length in (6, 40, 5):
            model(torch.rand(3, length))
    after = model.mean
    with pytest.raises(ExportError, match="its calls read mean, and write it") as caught:
        observer.export()
    assert caught.value.slug == "model-keeps-state"
    assert model.mean is after


_GLOBAL = {"n": 0}


class ReadsElsewhere(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * _GLOBAL["n"]


def test_a_program_that_does_not_give_what_was_watched_is_not_verified() -> None:
    model, observer = ReadsElsewhere(), InputObserver()
    with torch.no_grad(), observer(model):
        for _GLOBAL["n"] in (1, 2, 3):
            model(torch.rand(3, 4 + _GLOBAL["n"]))
    with pytest.warns(OnlookerWarning, match="depend on earlier calls"):
        program = observer.export()
    assert not program.verify().verified


def test_what_calls_write_and_do_not_read_is_no_state() -> None:
    doubt = find_doubt(*asked(watched(DrawsAndCounts())))
    assert doubt is not None
    assert doubt.slug == "random-numbers"


def test_the_doubt_stands_in_the_report() -> None:
    model, observer = torch.nn.Linear(4, 4), InputObserver()
    with observer(model), torch.no_grad():
        model(torch.rand(2, 4))
        model.weight.add_(1)
        model(torch.rand(3, 4))
    with pytest.warns(OnlookerWarning) as caught:
        program = observer.export()
    (warning,) = caught
    assert "call 0, run again from the state that stood before watching, differs" in str(warning.message)
    assert "Outputs depend on earlier calls" in program.report.text(full=True)


@pytest.fixture
def fast_path() -> Iterator[Callable[[bool], None]]:
    """Sets whether eager may take the fast path of attention."""
    before = torch.backends.mha.get_fastpath_enabled()
    yield torch.backends.mha.set_fastpath_enabled
    torch.backends.mha.set_fastpath_enabled(before)


def encoder(*, padded: bool, checks: bool = True) -> InputObserver:
    """Two calls of an encoder, the first rows of which are padded, on the left where nothing checks that."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model, observer = torch.nn.TransformerEncoder(layer, 1, mask_check=checks).eval(), InputObserver()
    with observer(model), torch.no_grad():
        for rows, length in ((2, 5), (3, 7)):
            mask = torch.zeros(rows, length, dtype=torch.bool)
            mask[0, -2:] = padded
            mask = mask if checks else mask.flip(1)
            model(torch.randn(rows, length, 8), src_key_padding_mask=mask)
    return observer


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_a_fast_path_that_gives_other_results_is_one_error_with_the_way_out(
    fast_path: Callable[[bool], None],
) -> None:
    fast_path(True)
    with pytest.raises(ExportError, match=r"call 0 .* fast path .*set_fastpath_enabled\(False\)") as caught:
        encoder(padded=True, checks=False).export()
    assert caught.value.slug == "fast-path"
    assert torch.backends.mha.get_fastpath_enabled()


def test_without_the_fast_path_the_same_calls_are_proven(fast_path: Callable[[bool], None]) -> None:
    fast_path(False)
    program = encoder(padded=True).export()
    assert program.verify().verified
    assert not torch.backends.mha.get_fastpath_enabled()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_a_fast_path_that_gives_the_same_is_none_of_our_business(fast_path: Callable[[bool], None]) -> None:
    fast_path(True)
    observer = encoder(padded=False)
    assert observer.plans(probe=False)
    store = observer._watcher.store("forward")
    assert find_doubt(store.samples, observer._lab(store)) is None


class Asks(torch.nn.Module):
    """Gives something else where gradients are recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        return y * 2 if torch.is_grad_enabled() else y


def test_a_model_that_needs_gradients_recorded_is_run_with_them() -> None:
    model = Asks()
    observer = watched(model)
    program = observer.export()
    assert program.verify().verified
    x = torch.rand(7, 4)
    assert torch.equal(program(x), model(x))
    assert not program(x).requires_grad
    with torch.inference_mode():
        assert observer.adopted(program).verify().verified
        assert program.verify(model=model).verified


def test_where_some_calls_recorded_none_it_is_said() -> None:
    model = Asks()
    observer = watched(model)
    with observer(model), torch.no_grad():
        model(torch.rand(9, 4))
    with pytest.warns(OnlookerWarning, match="Where gradients are recorded, it gives what was seen"):
        observer.export()


def test_runs_record_no_gradients_where_results_are_the_same() -> None:
    samples, lab = asked(observer := watched(torch.nn.Linear(4, 4)))
    assert find_doubt(samples, lab, observer.recording().calls) is None
    assert not lab.subject.gradients
    assert not lab.run({"input": torch.rand(2, 4)}, why="a test").leaves[0].requires_grad


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.slow
def test_with_gradients_there_is_no_fast_path(fast_path: Callable[[bool], None]) -> None:
    """Eager takes it only where none are recorded."""
    fast_path(True)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model, observer = torch.nn.TransformerEncoder(layer, 1).eval(), InputObserver()
    with observer(model):
        for n in (4, 6):
            model(torch.rand(2, n, 8), src_key_padding_mask=torch.arange(n).expand(2, n) >= n - 1)
    program = observer.export()
    assert program.verify().verified


class MakesWeights(torch.nn.Module):
    """Makes its weights in its first call, at random."""

    def __init__(self, place: str) -> None:
        super().__init__()
        self.place = place
        self.scale: Any = None
        self.layer: Any = None
        self.rows: list[torch.Tensor] = []
        self.table: dict[str, torch.Tensor] = {}

    def forward(self, x: torch.Tensor) -> Any:
        if self.place == "attribute":
            self.scale = torch.randn(4) if self.scale is None else self.scale
            return x * self.scale
        if self.place == "module":
            self.layer = torch.nn.Linear(4, 4) if self.layer is None else self.layer
            return self.layer(x)
        if self.place == "list":
            if not self.rows:
                self.rows.append(torch.randn(4))
            return x * self.rows[0]
        if "scale" not in self.table:
            self.table["scale"] = torch.randn(4)
        return x * self.table["scale"]


@pytest.mark.parametrize("place", ["attribute", "module", "list", "dict"])
@pytest.mark.one_in(2)
def test_weights_that_the_first_call_drew_stay(place: str) -> None:
    model, observer = MakesWeights(place).eval(), InputObserver()
    with observer(model), torch.no_grad():
        model(torch.randn(2, 5, 4))
    program = observer.export()
    assert program.verify().verified
    x = torch.randn(3, 7, 4)
    torch.testing.assert_close(program(x), model(x))
