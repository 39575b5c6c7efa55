"""onlooker.export: a model and example inputs give a verified program."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import onlooker
from onlooker.front.calls import as_calls

X = torch.ones(1, 4)


class Scaled(torch.nn.Module):
    """Takes a tensor, and a factor by name."""

    def forward(self, x: torch.Tensor, factor: torch.Tensor | None = None) -> torch.Tensor:
        return x * 2 if factor is None else x * factor

    def twice(self, x: torch.Tensor) -> torch.Tensor:
        return x * 4


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (X, [((X,), {})]),
        ((X, 3), [((X, 3), {})]),
        ({"x": X}, [((), {"x": X})]),
        (((X,), {"y": 3}), [((X,), {"y": 3})]),
        ([X, (X,), {"x": X}], [((X,), {}), ((X,), {}), ((), {"x": X})]),
        (iter([X]), [((X,), {})]),
    ],
)
def test_calls_are_taken_as_people_have_them(given: Any, wanted: Any) -> None:
    assert as_calls(given) == wanted


@pytest.mark.parametrize("given", ["x", ["x"], b"x", {3: X}, [{3: X}]])
def test_what_is_no_call_is_refused(given: Any) -> None:
    with pytest.raises(onlooker.ArgumentKindError, match=r"\[wrong-kind\]"):
        as_calls(given)


def test_one_call_of_one_row_gives_a_program_for_any_number_of_rows() -> None:
    program = onlooker.export(torch.nn.Linear(4, 2).eval(), X)
    assert program.report.verified
    assert program.tally.total > 1
    assert program(torch.ones(9, 4)).shape == (9, 2)


def test_a_function_uses_the_model_itself() -> None:
    model = Scaled()
    for use in (lambda: model(X), lambda given: given(X)):
        assert onlooker.export(model, use).report.verified


def test_another_method_and_names_of_axes() -> None:
    program = onlooker.export(Scaled(), [X, torch.ones(3, 4)], method="twice", names={"x": {0: "rows"}})
    assert program.recording.method == "twice"
    assert "rows" in [symbol.name for symbol in program.plans[0].symbols]
    torch.testing.assert_close(program(torch.ones(5, 4)), torch.full((5, 4), 4.0))


def test_options_of_the_target_are_given_to_it() -> None:
    pytest.importorskip("onnxruntime")
    program = onlooker.export(Scaled(), X, to="onnx", opset=21, static={"x": [1]})
    assert program.report.verified
    assert program.graphs[0].artifact.model.opset_imports[""] == 21


@pytest.mark.slow
def test_an_observer_takes_the_options_of_the_target_too() -> None:
    pytest.importorskip("onnxruntime")
    model, observer = Scaled(), onlooker.InputObserver()
    with observer(model):
        model(X)
    program = observer.export(to="onnx", opset=20)
    assert program.graphs[0].artifact.model.opset_imports[""] == 20
    with onlooker.observe(model=model) as observers:
        model(X)
    programs = observers.export(to="onnx", options={"model": {"opset": 21}})
    assert programs["model"].graphs[0].artifact.model.opset_imports[""] == 21


def test_a_call_that_the_model_refuses_is_an_error_with_its_line() -> None:
    with pytest.raises(onlooker.UsageError, match=r"Call 1 raised RuntimeError: .*\[call-raised\]"):
        onlooker.export(torch.nn.Linear(4, 2), [X, torch.ones(2, 3)])
    with pytest.raises(onlooker.UsageError, match=r"Call 0 raised TypeError: .*\[call-raised\]"):
        onlooker.export(Scaled(), [(X, None, 3)])


def test_options_are_looked_at_before_anything_runs() -> None:
    def never() -> None:
        raise AssertionError

    for options in (
        {"opset": 21},
        {"to": "onnx", "size": 3},
        {"to": "paper"},
        {"static": 3},
        {"names": {"x": {0: "a b"}}},
    ):
        with pytest.raises(onlooker.UsageError):
            onlooker.export(Scaled(), never, **options)


def test_a_function_that_does_not_call_the_model_is_told_so() -> None:
    with pytest.raises(onlooker.ObservationError, match="no-calls"):
        onlooker.export(Scaled(), lambda: None)
