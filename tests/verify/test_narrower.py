"""What a conversion lost is found, named, and blamed on nothing else."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import pytest
import torch

from onlooker import InputObserver, Program
from onlooker.core.errors import OnlookerWarning, RejectedCallError
from onlooker.core.verdict import Focus
from onlooker.verify.effort import Effort
from onlooker.verify.narrower import lost_checks
from onlooker.verify.trials import Trial


class Steps(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.RNN(3, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[0]


class Noise(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand_like(x)


def exported(model: torch.nn.Module, *lengths: int) -> Program:
    observer = InputObserver()
    with observer(model.eval()), torch.no_grad():
        for length in lengths:
            model(torch.randn(length, 3))
    return observer.export()


def trials(*sizes: int) -> list[Trial]:
    return [Trial("observed", str(size), {"x": torch.ones(size)}, focus=Focus.OBSERVED) for size in sizes]


def lost(serve: Any, before: Any) -> list[str]:
    effort = Effort(torch.nn.Identity())
    found = lost_checks(serve, before, trials(1, 2, 3), effort, atol=1e-5)
    return [f"{check.label}: {check.outcome}" for checks in found.values() for check in checks if not check.passed]


def refuse(arguments: dict[str, Any]) -> Any:
    raise RejectedCallError("no graph", slug="call-refused", hint="none")


def test_a_call_that_only_the_new_program_refuses_is_lost() -> None:
    assert lost(refuse, lambda given: given["x"]) == ["1: rejected", "2: rejected", "3: rejected"]


def test_a_call_with_another_result_is_lost() -> None:
    assert lost(lambda given: given["x"] * len(given["x"]), lambda given: given["x"]) == [
        "2: different",
        "3: different",
    ]


def test_a_call_that_both_refuse_is_not_lost() -> None:
    assert lost(refuse, refuse) == []


def test_results_that_never_repeat_tell_nothing() -> None:
    assert lost(lambda given: given["x"], lambda given: torch.rand(3)) == []


def test_arguments_that_a_program_changes_in_place_are_copies() -> None:
    assert lost(lambda given: given["x"].add_(1), lambda given: given["x"].add_(1)) == []


def test_a_conversion_says_at_once_what_it_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the repair the converter makes the steps of the example a constant."""
    program = exported(Steps(), 5, 7)
    monkeypatch.setattr("onlooker.targets.onnx.convert.steps_stay_sizes", lambda _: contextlib.nullcontext())
    words = r"onnx serves less.*of \d calls that torch serves fail in onnx \(call 1, batch=\d+, .*\[serves-less\]"
    with pytest.warns(OnlookerWarning, match=words):
        converted = program.to("onnx")
    assert "that torch serves fail in onnx" in converted.graphs[0].notes[-1]
    assert "that torch serves fail in onnx" in converted.report.text(full=True)
    assert not program.graphs[0].notes


def test_a_conversion_that_lost_nothing_says_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        converted = exported(Steps(), 5, 7).to("onnx")
    assert not converted.graphs[0].notes


@pytest.mark.filterwarnings("ignore:The model draws random numbers")
def test_random_numbers_are_no_loss() -> None:
    program = exported(Noise(), 5, 7)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program.to("onnx")
