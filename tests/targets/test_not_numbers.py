"""Other runtimes than torch leave NaN out of maxima: their programs take none, unless the model is about NaN. Nor
does a program of OpenVINO take ints that it rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from onlooker import InputObserver, OnlookerWarning, Program, RejectedCallError, load
from onlooker.core.marks import FINITE, NUMBERS

TARGETS = ["onnx", "openvino"]


def exported(function: Callable[[torch.Tensor], Any], *, nan: bool = False) -> tuple[torch.nn.Module, Program]:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return function(x)

    model, observer = Model(), InputObserver()
    with torch.no_grad(), observer(model):
        for size in ((2, 5, 4), (3, 9, 4), (4, 7, 4)):
            x = torch.randn(size)
            x[0, 0, 0] = float("nan") if nan else 1.0
            model(x)
    return model, observer.export()


def with_nan() -> torch.Tensor:
    x = torch.randn(2, 6, 4)
    x[0, 2, 1] = float("nan")
    return x


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "function",
    [lambda x: (x.amax(1), x.argmax(-1)), torch.relu, lambda x: x.clamp(max=0.5), lambda x: x.sort(-1).values],
    ids=["maxima", "relu", "clamp", "sort"],
)
@pytest.mark.one_in(4)
def test_nan_is_refused_where_the_runtime_drops_it(target: str, function: Callable[[torch.Tensor], Any]) -> None:
    model, program = exported(function)
    converted = program.to(target)
    with pytest.raises(RejectedCallError, match="no NaN"):
        converted(with_nan())
    infinite = torch.full((2, 6, 4), float("inf"))
    infinite[0, 0, 0] = -float("inf")
    if FINITE in converted.graphs[0].marks:
        with pytest.raises(RejectedCallError, match="finite numbers"):
            converted(infinite)
    else:
        torch.testing.assert_close(converted(infinite), model(infinite))
    assert not program.graphs[0].marks


@pytest.mark.parametrize("target", TARGETS)
def test_a_model_that_asks_for_nan_takes_it(target: str) -> None:
    model, program = exported(lambda x: torch.where(torch.isnan(x), 0.0, x) * 2)
    x = with_nan()
    torch.testing.assert_close(program.to(target)(x), model(x))


def test_a_program_that_was_watched_with_nan_takes_it() -> None:
    _, program = exported(lambda x: x * 2, nan=True)
    assert NUMBERS not in program.to("onnx").graphs[0].marks


class Quotients(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x // 1000


@pytest.mark.parametrize("power", [24, 31, 40])
@pytest.mark.one_in(3)
def test_ints_of_64_bits_are_refused_where_the_runtime_rounds_them(power: int, tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    model, observer = Quotients(), InputObserver()
    with observer(model):
        for size in (2, 3):
            model(torch.arange(size).repeat(3, 1) + 2 ** (power - 1))
    if power == 40:
        with pytest.warns(OnlookerWarning, match="serves less"):
            program = observer.export().to("openvino")
        assert not program.verify().verified
        return
    program = observer.export().to("openvino")
    assert program.verify().verified
    taken = torch.tensor([[2**power - 1, -(2**power)]])
    program.save(str(tmp_path / "program"))
    for each in (program, load(str(tmp_path / "program"))):
        torch.testing.assert_close(each(taken), model(taken))
        with pytest.raises(RejectedCallError, match=rf"ints below 2\*\*{power}.*which has {2**power}"):
            each(taken + 1)


class Filled(torch.nn.Module):
    def forward(self, x: torch.Tensor, k: int) -> tuple[torch.Tensor, int]:
        return x * 0 + k, k // 3


def test_large_ints_of_python_are_refused_like_those_of_tensors() -> None:
    pytest.importorskip("openvino")
    model, observer = Filled(), InputObserver()
    with observer(model):
        model(torch.ones(2, 3), 5)
        model(torch.ones(3, 3), 9)
    program = observer.export().to("openvino")
    assert program.verify().verified
    torch.testing.assert_close(program(torch.ones(1, 3), 2**24 - 1), model(torch.ones(1, 3), 2**24 - 1))
    with pytest.raises(RejectedCallError, match=r"ints below 2\*\*24.*k, which has 2147483648"):
        program(torch.ones(1, 3), 2**31)


class Threshold(torch.nn.Module):
    def forward(self, x: torch.Tensor, level: float) -> Any:
        return x > level, x * level


def test_floats_of_python_are_refused_where_the_runtime_has_none_of_that_size() -> None:
    model, observer = Threshold(), InputObserver()
    with torch.no_grad(), observer(model):
        for rows, level in ((2, 0.5), (3, 0.6), (4, 0.7)):
            model(torch.randn(rows, 5), level)
    program = observer.export(to="openvino")
    assert program.verify().verified, program.report
    x = torch.randn(3, 5)
    for level in (float("nan"), float("inf"), -1e39):
        with pytest.raises(RejectedCallError, match="float arguments that are finite in 32 bits"):
            program(x, level)
    torch.testing.assert_close(program(x, -3e38), model(x, -3e38))
