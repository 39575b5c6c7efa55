"""The Lab: every run is counted, known runs are not made again, and each experiment is written down."""

from __future__ import annotations

import itertools
import logging
import time
import weakref
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor

from onlooker import InputObserver, Plan
from onlooker.core.experiment import BlindKind, BlindSpot, Finding, FindingKind
from onlooker.core.path import Name, Path
from onlooker.core.spec import Axis
from onlooker.lab.budget import Budget
from onlooker.lab.lab import Lab, SpentError

X = Path((Name("x"),))


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


class Counting(torch.nn.Module):
    """Counts its eager runs; refuses fewer than two columns; a mask may be left out."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(6, 5)
        self.counts = counted()

    @property
    def tally(self) -> Tally:
        return TALLIES[self.counts][0]

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        if not isinstance(x, FakeTensor):
            self.tally.runs += 1
        else:
            self.tally.traces += 1
        if x.shape[1] < 2:
            raise ValueError("too short")
        hidden = self.linear(x)
        if mask is not None:
            hidden = hidden * mask.unsqueeze(-1)
        return hidden.cumsum(1)


class Tally:
    """A counter that no walk from the model finds, so that nothing puts it back."""

    runs = 0
    traces = 0


#: kept behind weak references, which nothing follows
TALLIES: weakref.WeakKeyDictionary[Any, list[Tally]] = weakref.WeakKeyDictionary()


def counted() -> type:
    """A key of a new tally; it is a class, since a copy of a model has it as well."""
    key = type("Key", (), {"__module__": "weakref"})
    TALLIES[key] = [Tally()]
    return key


def watched(model: torch.nn.Module, *calls: dict[str, Any]) -> InputObserver:
    observer = InputObserver()
    with observer(model.eval()), torch.no_grad():
        for call in calls:
            model(**call)
    return observer


def counting(*shapes: tuple[int, ...]) -> tuple[Counting, InputObserver]:
    model = Counting()
    observer = watched(model, *({"x": rand(*shape)} for shape in shapes or ((1, 4, 6),)))
    model.tally.runs = 0
    return model, observer


def lab_of(observer: InputObserver, budget: Budget | None = None) -> Lab:
    return observer._lab(observer._watcher.store(), budget)


# --------------------------------------------------------------------------------------- runs and the budget


def test_a_run_is_counted_and_leaves_the_arguments_alone() -> None:
    _, observer = counting()
    lab, x = lab_of(observer), rand(2, 4, 6)
    before = x.clone()
    result = lab.run({"x": x}, why="a test")
    assert result.leaves[0].shape == (2, 4, 5)
    assert (lab.runs, lab.necessary) == (1, 0)
    assert torch.equal(x, before)


def test_a_refused_run_raises_what_the_model_raises_and_counts() -> None:
    _, observer = counting()
    lab = lab_of(observer)
    with pytest.raises(ValueError, match="too short"):
        lab.run({"x": rand(1, 1, 6)}, why="a test")
    assert lab.try_run({"x": rand(1, 1, 6)}, why="a test") is None
    assert lab.runs == 2


def test_the_budget_ends_runs_and_necessary_ones_go_on() -> None:
    _, observer = counting()
    lab = lab_of(observer, Budget(1))
    lab.run({"x": rand(1, 4, 6)}, why="the only one")
    with pytest.raises(SpentError, match="1 runs"):
        lab.run({"x": rand(2, 4, 6)}, why="one too many")
    with pytest.raises(SpentError):
        lab.try_run({"x": rand(2, 4, 6)}, why="one too many")
    lab.run({"x": rand(2, 4, 6)}, why="an example", necessary=True)
    assert (lab.runs, lab.necessary) == (2, 1)


def test_a_share_bounds_the_runs_of_a_block() -> None:
    _, observer = counting()
    lab = lab_of(observer, Budget(3))
    with lab.share(1):
        lab.run({"x": rand(1, 4, 6)}, why="the first")
        with pytest.raises(SpentError, match="one kind of question"):
            lab.run({"x": rand(2, 4, 6)}, why="the second")
    for _ in range(2):
        lab.run({"x": rand(2, 4, 6)}, why="after the block")
    with pytest.raises(SpentError, match="3 runs"):
        lab.run({"x": rand(2, 4, 6)}, why="one too many")


@pytest.mark.parametrize(("budget", "share"), [(1, 48), (512, 48), (1024, 96), (5120, 480)])
def test_a_larger_budget_has_larger_shares(budget: int, share: int) -> None:
    _, observer = counting()
    assert lab_of(observer, Budget(budget)).in_proportion(48) == share


def test_what_an_export_could_not_test_is_noted_once() -> None:
    _, observer = counting()
    lab = lab_of(observer, Budget(0))
    for _ in range(2):
        with pytest.raises(SpentError):
            lab.try_out({"x": rand(1, 4, 6)})
    (spot,) = lab.unknown
    assert spot.kind is BlindKind.BUDGET
    assert "0 runs ended before every guard" in str(spot)


def test_random_numbers_and_state_are_put_back() -> None:
    class Draws(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return x + torch.rand(x.shape)

    model = Draws()
    lab = lab_of(watched(model, {"x": rand(2, 3)}))
    state = torch.get_rng_state()
    first, second = (lab.run({"x": rand(2, 3)}, why="a test") for _ in range(2))
    assert torch.equal(first.leaves[0], second.leaves[0])
    assert torch.equal(torch.get_rng_state(), state)
    assert model.calls == 1


# --------------------------------------------------------------------------------------- the memo


def test_a_known_run_is_not_made_again() -> None:
    model, observer = counting()
    lab = lab_of(observer, Budget(1))
    first = lab.run({"x": rand(2, 4, 6)}, why="a test", memo=True)
    assert lab.run({"x": rand(2, 4, 6).clone()}, why="the same", memo=True) is first
    assert (model.tally.runs, lab.runs) == (1, 1)


def test_a_known_refusal_is_not_made_again() -> None:
    model, observer = counting()
    lab = lab_of(observer)
    for _ in range(3):
        with pytest.raises(ValueError, match="too short"):
            lab.run({"x": rand(1, 1, 6)}, why="a test", memo=True)
    assert model.tally.runs == 1


def test_other_values_and_runs_without_memo_are_made() -> None:
    model, observer = counting()
    lab = lab_of(observer)
    lab.run({"x": rand(2, 4, 6)}, why="a test", memo=True)
    lab.run({"x": rand(2, 4, 6) + 1}, why="other values", memo=True)
    lab.run({"x": rand(2, 4, 6)}, why="without memo")
    assert model.tally.runs == 3


# --------------------------------------------------------------------------------------- the record


def test_experiments_are_recorded_in_their_order() -> None:
    _, observer = counting()
    lab = lab_of(observer)
    lab.record([Axis(X, 0)], [2], finding=Finding(FindingKind.ACCEPTED), label="probe 0")
    lab.record(finding=Finding(FindingKind.REFUTED), claim="mask may be left out", argument="mask")
    assert [str(record) for record in lab.records] == [
        "probe 0 (x.shape[0] = 2): accepted",
        "a probe: mask may be left out: refuted",
    ]


def test_every_experiment_stands_once_in_the_plan_and_is_explained() -> None:
    _, observer = counting((1, 4, 6), (1, 7, 6))
    (plan,) = observer.plans()
    kinds = {probe.finding.kind for probe in plan.probes}
    assert {FindingKind.ACCEPTED, FindingKind.REFUSED, FindingKind.CONFIRMED} <= kinds
    explained = plan.explain("x", 2).splitlines()
    about = [probe for probe in plan.probes if probe.is_about(Axis(X, 2))]
    assert about
    assert all(explained.count(f"{probe}.") == 1 for probe in about)
    assert any("mask may be given" in line for line in plan.explain("mask", 1).splitlines())


def test_runs_are_logged_with_their_reason(caplog: pytest.LogCaptureFixture) -> None:
    _, observer = counting()
    with caplog.at_level(logging.INFO, logger="onlooker"):
        observer.plans()
    lines = [record.getMessage() for record in caplog.records]
    assert "run 2, experiment 2 of at most 512: x.shape[0] = 2" in lines


# --------------------------------------------------------------------------------------- from recording to program

#: runs that no budget forbids, for a model of one kind of calls, beside the example of each trace: the recorded calls
REPLAYS = 2


@pytest.mark.parametrize("budget", [0, 1, 2, 5, 12, 30, (7,), (9, None)])
@pytest.mark.one_in(2)
def test_the_budget_bounds_all_runs_from_the_recording_to_the_program(budget: Any) -> None:
    model, observer = counting((1, 4, 6), (1, 7, 6))
    program = observer.export(budget=budget)
    runs = budget if isinstance(budget, int) else budget[0]
    assert 1 <= model.tally.traces <= 3
    assert model.tally.runs <= runs + REPLAYS + model.tally.traces
    assert program.report.probes == model.tally.runs
    x = rand(1, 4, 6)
    torch.testing.assert_close(program(x), model(x))


@pytest.mark.parametrize("budget", [0, 1, 2, 5, 12, 30])
def test_the_budget_bounds_all_runs_for_a_plan(budget: int) -> None:
    model, observer = counting((1, 4, 6), (1, 7, 6))
    observer.plans(budget=budget)
    assert model.tally.runs <= budget


class Continues(torch.nn.Module):
    """Takes a state that the first call lacks."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = counted()

    @property
    def tally(self) -> Tally:
        return TALLIES[self.counts][0]

    def forward(self, x: torch.Tensor, state: torch.Tensor | None = None) -> torch.Tensor:
        if not isinstance(x, FakeTensor):
            self.tally.runs += 1
        else:
            self.tally.traces += 1
        whole = x if state is None else torch.cat([state, x], dim=1)
        return whole.cumsum(1)


@pytest.mark.parametrize("budget", [0, 4])
def test_two_kinds_of_calls_share_a_graph_without_any_budget(budget: int) -> None:
    model = Continues()
    calls = [{"x": rand(2, 5, 3)}, *({"x": rand(2, 1, 3), "state": rand(2, n, 3)} for n in (5, 6))]
    observer = watched(model, *calls)
    model.tally.runs = 0
    (plan,) = observer.plans(budget=budget)
    first_fill = 1  # the one call that lacks the state, filled
    assert model.tally.runs <= budget + first_fill
    assert plan.leaf("state").fill is not None
    model.tally.runs = model.tally.traces = 0
    observer.export(budget=budget)
    assert model.tally.runs <= budget + REPLAYS + first_fill + model.tally.traces


def test_a_program_does_not_hold_the_results_of_experiments() -> None:
    _, observer = counting()
    program = observer.export()
    assert not program._program.lab._memo._outcomes  # type: ignore[union-attr]


def test_the_runs_of_an_export_are_those_of_the_report() -> None:
    model, observer = counting()
    program = observer.export()
    assert program.report.probes == model.tally.runs
    before = model.tally.runs
    program.verify()
    assert model.tally.runs > before
    assert program.report.probes == before


@pytest.mark.parametrize("budget", [1, 3, 6])
def test_what_a_small_budget_left_open_is_said(budget: int) -> None:
    _, observer = counting()
    (plan,) = observer.plans(budget=budget)
    spots = [spot for spot in plan.blind if isinstance(spot, BlindSpot)]
    assert any(spot.kind is BlindKind.BUDGET and spot.limit == f"{budget} runs" for spot in spots)
    assert all("raise budget=" in str(spot) for spot in spots if spot.kind is BlindKind.BUDGET)


def test_no_time_is_no_experiment() -> None:
    model, observer = counting()
    (plan,) = observer.plans(budget=(64, 0.0))
    assert [str(e) for e in plan.leaf("x").shape] == ["1", "4", "6"]
    assert model.tally.runs == 0
    assert any("0 seconds ended" in str(spot) and "raise budget=" in str(spot) for spot in plan.blind)


# --------------------------------------------------------------------------------------- the same on every machine


def plans_of(model: torch.nn.Module, **options: Any) -> tuple[Plan, ...]:
    return watched(model, {"x": rand(1, 4, 6)}, {"x": rand(1, 8, 6)}).plans(**options)


def test_the_clock_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = Counting()
    expected = plans_of(model)
    hours = itertools.count(step=3600.0)
    for name in ("monotonic", "perf_counter", "thread_time", "process_time", "time"):
        monkeypatch.setattr(time, name, lambda: next(hours))
    assert plans_of(model) == expected


def test_a_slow_model_gets_the_same_plan() -> None:
    class Slow(Counting):
        def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
            time.sleep(0.02)
            return super().forward(x, mask)

    torch.manual_seed(0)
    expected = plans_of(Counting())
    torch.manual_seed(0)
    got = plans_of(Slow())
    assert [p.leaves for p in got] == [p.leaves for p in expected]
    assert [p.symbols for p in got] == [p.symbols for p in expected]
    assert [p.probes for p in got] == [p.probes for p in expected]
