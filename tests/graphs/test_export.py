"""Real exports of small modules: one class of difficulty each, replayed on calls that were never seen."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from onlooker import InputObserver
from onlooker.core.errors import ExportError, ObservationError, RejectedCallError, UsageError
from onlooker.core.traffic import Violation, ViolationKind
from onlooker.serve.route import Mismatch
from onlooker.trace.flat import identifiers

Calls = list[tuple[tuple[Any, ...], dict[str, Any]]]


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def call(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, kwargs


class Add(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y


class OptionalMask(torch.nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return x if mask is None else x * mask


class Listed(torch.nn.Module):
    def forward(self, xs: list[torch.Tensor], scale: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"joined": torch.cat(xs, dim=1) * scale}


class Total(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        return torch.cat([a, b], dim=1) * total


class Flag(torch.nn.Module):
    def forward(self, x: torch.Tensor, double: bool = False) -> torch.Tensor:
        return 2 * x if double else x + 1


class Repeat(torch.nn.Module):
    def forward(self, x: torch.Tensor, times: int) -> torch.Tensor:
        return x * times


class Keywords(torch.nn.Module):
    def forward(self, x: torch.Tensor, **others: torch.Tensor) -> torch.Tensor:
        return x + others["y"] - others["z"]


class Spread(torch.nn.Module):
    def forward(self, *xs: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return sum(xs[1:], xs[0]) * scale


@dataclasses.dataclass
class Sample:
    x: torch.Tensor
    length: torch.Tensor


class Opened(torch.nn.Module):
    def forward(self, sample: Sample) -> Sample:
        keep = torch.arange(sample.x.shape[1]).unsqueeze(0) < sample.length.unsqueeze(1)
        return Sample(sample.x * keep, sample.length + 1)


CASES: dict[str, tuple[Callable[[], torch.nn.Module], Calls, Calls]] = {
    "positional": (
        Add,
        [call(rand(2, 6), rand(1, 6)), call(rand(3, 7), rand(1, 7)), call(rand(4, 8), rand(1, 8))],
        [call(rand(1, 1), rand(1, 1)), call(rand(9, 2), rand(1, 2))],
    ),
    "one call": (lambda: torch.nn.Linear(4, 2), [call(rand(1, 4))], [call(rand(7, 4))]),
    "optional": (
        OptionalMask,
        [call(rand(2, 6)), call(rand(3, 5), mask=torch.ones(3, 5))],
        [call(rand(4, 9)), call(rand(1, 2), mask=rand(1, 2)), call(rand(6, 3), rand(6, 3))],
    ),
    "list": (
        Listed,
        [call([rand(1, 3), rand(1, 4)], rand(1, 1)), call([rand(3, 6), rand(3, 2)], rand(3, 1))],
        [call([rand(2, 9), rand(2, 7)], rand(2, 1))],
    ),
    "sum": (
        Total,
        [call(rand(1, 4), rand(1, 6), rand(1, 10)), call(rand(3, 5), rand(3, 2), rand(3, 7))],
        [call(rand(2, 3), rand(2, 8), rand(2, 11)), call(rand(4, 1), rand(4, 1), rand(4, 2))],
    ),
    "flag": (
        Flag,
        [call(rand(2, 3)), call(rand(3, 3), double=True)],
        [call(rand(5, 3), double=True), call(rand(4, 3)), call(rand(4, 3), double=False)],
    ),
    "changing int": (
        Repeat,
        [call(rand(2, 3), 2), call(rand(4, 3), 5)],
        [call(rand(5, 3), 7), call(rand(1, 3), times=3)],
    ),
    "**kwargs": (
        Keywords,
        [call(rand(2, 3), y=rand(2, 3), z=rand(2, 3)), call(rand(4, 3), y=rand(4, 3), z=rand(4, 3))],
        [call(rand(5, 3), z=rand(5, 3), y=rand(5, 3))],
    ),
    "*args": (
        Spread,
        [call(rand(2, 3), rand(2, 3), scale=rand(2, 1)), call(rand(4, 3), rand(4, 3), scale=rand(4, 1))],
        [call(rand(5, 3), rand(5, 3), scale=rand(5, 1))],
    ),
    "dataclass": (
        Opened,
        [
            call(Sample(rand(2, 6), torch.tensor([3, 6]))),
            call(Sample(rand(3, 5), torch.tensor([1, 2, 5]))),
        ],
        [call(Sample(rand(4, 9), torch.tensor([9, 1, 2, 3])))],
    ),
}


def watched(model: torch.nn.Module, calls: Calls) -> InputObserver:
    observer = InputObserver()
    with observer(model):
        for args, kwargs in calls:
            model(*args, **kwargs)
    return observer


def leaves(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    items = vars(value).values() if dataclasses.is_dataclass(value) else value.values()
    return [leaf for item in items for leaf in leaves(item)]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.one_in(2)
def test_a_program_gives_what_the_model_gives_on_calls_never_seen(name: str) -> None:
    make, seen, unseen = CASES[name]
    model = make().eval()
    program = watched(model, seen).export()
    for args, kwargs in [*seen, *unseen]:
        with torch.no_grad():
            expected = model(*args, **kwargs)
        got = program(*args, **kwargs)
        assert type(got) is type(expected)
        for left, right in zip(leaves(expected), leaves(got), strict=True):
            torch.testing.assert_close(right, left, rtol=1e-6, atol=1e-6)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", CASES)
def test_every_case_is_verified_and_no_axis_is_narrower_than_asked(name: str) -> None:
    make, seen, _ = CASES[name]
    program = watched(make().eval(), seen).export()
    assert program.verify().verified, program.report
    assert program.report.verdict == "verified"
    assert program.report.narrowed == ()


def test_exporting_leaves_the_model_and_the_random_state_as_they_were() -> None:
    model = Add()
    observer = watched(model, CASES["positional"][1])
    before, state = dict(vars(model)), torch.get_rng_state()
    observer.export().verify()
    assert vars(model) == before
    assert torch.equal(torch.get_rng_state(), state)


class AnotherWay(torch.nn.Module):
    """Without ``y`` it computes something that no ``y`` gives."""

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
        return x.cumsum(1) if y is None else x + y


REFUSED = {
    "another constant": (
        Flag,
        [call(rand(2, 3), double=True)],
        call(rand(2, 3), double=False),
        "double is always True",
    ),
    "a constant that is missing": (Flag, [call(rand(2, 3), double=True)], call(rand(2, 3)), "its default, False"),
    "a static size": (
        lambda: torch.nn.Linear(4, 2),
        [call(rand(1, 4))],
        call(rand(2, 5)),
        r"input\.shape\[1\] is always 4, the call has 5",
    ),
    "another dtype": (Add, CASES["positional"][1], call(rand(2, 6).double(), rand(1, 6)), r"x is a float32\[.*float64"),
    "an argument never seen": (
        OptionalMask,
        [call(rand(2, 3))],
        call(rand(2, 3), mask=rand(2, 3)),
        r"mask is a int64\[batch, sequence\], the call has float32",
    ),
    "an argument always seen": (
        AnotherWay,
        [call(rand(2, 3), y=rand(2, 3))],
        call(rand(2, 3)),
        "y was in every observed call",
    ),
    "sizes that do not agree": (
        Total,
        CASES["sum"][1],
        call(rand(2, 3), rand(2, 4), rand(2, 9)),
        r"total.shape\[1\] has to be a_dim_1 \+ b_dim_1",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.one_in(2)
def test_a_call_that_no_graph_serves_is_refused_with_its_reason(name: str) -> None:
    make, seen, refused, text = REFUSED[name]
    program = watched(make().eval(), seen).export()
    with pytest.raises(RejectedCallError, match=text) as caught:
        program(*refused[0], **refused[1])
    assert caught.value.slug == "call-refused"


def test_a_call_that_does_not_fit_the_signature_is_refused() -> None:
    program = watched(Add(), CASES["positional"][1]).export()
    with pytest.raises(RejectedCallError, match="does not fit the signature"):
        program(rand(2, 6))


class Branches(torch.nn.Module):
    """Python control flow on a size: the graph is right on one side only."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(dim=1) if x.shape[1] > 2 else x.sum(dim=1) * 2


def test_a_branch_that_no_call_took_is_served_right() -> None:
    model = Branches()
    program = watched(model, [call(rand(2, 6)), call(rand(3, 7))]).export(ranges={"x_dim_1": (1, 9)})
    assert program.verify().verified
    for length in (1, 2, 3, 4, 9):
        torch.testing.assert_close(program(rand(2, length)), model(rand(2, length)))


def test_unknown_targets_and_empty_observers_are_refused() -> None:
    with pytest.raises(UsageError, match="no target 'tflite'"):
        watched(Add(), CASES["positional"][1]).export(to="tflite")
    with pytest.raises(ObservationError, match="was not watched yet"):
        InputObserver().export()


class Refuses(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(x.numpy() + 1)


def test_what_torch_cannot_export_is_one_error_with_its_message() -> None:
    with pytest.raises(ExportError, match=r"torch\.export refuses .*Refuses\.forward") as caught:
        watched(Refuses(), [call(torch.ones(3)), call(torch.ones(4))]).export()
    assert caught.value.slug == "export-refused"
    assert caught.value.__cause__ is not None


def test_a_program_that_serves_no_watched_call_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onlooker.graphs.program_graphs.ProgramGraphs.serves", lambda *_: False)
    with pytest.raises(ExportError, match=r"none takes a call that was watched \(calls 0, 1\)") as caught:
        watched(torch.nn.ReLU(), [call(rand(2, 6)), call(rand(3, 6))]).export()
    assert caught.value.slug == "no-call-served"


class AsPositive(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if bool((x > 0).all()) else x - 1


def test_what_a_graph_says_to_a_watched_call_is_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object) -> None:
        raise Mismatch(Violation(ViolationKind.CONDITION, "x", "positive", "not"))

    monkeypatch.setattr("onlooker.graphs.served_calls.Dispatcher.run", run)
    with pytest.raises(ExportError, match=r"To call 0 main says: x needs positive") as caught:
        watched(AsPositive(), [call(rand(2, 6)), call(rand(3, 6))]).export()
    assert caught.value.slug == "no-call-served"
    assert "test_export.py" in str(caught.value)
    assert "return x + 1 if bool((x > 0).all()) else x - 1" in str(caught.value)


def test_axes_that_the_caller_pins_are_not_probed() -> None:
    observer = watched(torch.nn.ReLU(), [call(rand(2, 6))])
    (free,), (pinned,) = observer.plans(), observer.plans(static={"input": [1]})
    assert [str(e) for e in free.leaf("input").shape] == ["batch", "input_dim_1"]
    assert [str(e) for e in pinned.leaf("input").shape] == ["batch", "6"]
    (observed,) = observer.plans(probe=False)
    assert [str(e) for e in observed.leaf("input").shape] == ["2", "6"]


def test_names_for_torch_are_python_names() -> None:
    assert identifiers(["a.b", "a_b", "1"]) == ["a_b", "a_b_1", "_1"]
