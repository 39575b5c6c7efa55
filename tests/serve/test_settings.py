"""A program that stands in for a model notices what the user switches in the model after the export."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from onlooker import InputObserver, Program, RejectedCallError


class Config:
    def __init__(self) -> None:
        self.scale, self.name = 2.0, "small"


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.drop = torch.nn.Linear(4, 4), torch.nn.Dropout(0.5)
        self.merged: list[str] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        return self.drop(y if self.merged else y + 1)


class Switched(torch.nn.Module):
    """Reads its mode, a list of a layer, and a number of its configuration; counts its calls, and reads no note."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.config = Layer(), Config()
        self.calls, self.note, self.longest = 0, "", 3

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        y = self.layer(x) * self.config.scale
        return y + self.longest if x.shape[0] > 8 else y


@pytest.fixture(scope="module")
def made() -> tuple[Switched, Program]:
    torch.manual_seed(0)
    model, observer = Switched().eval(), InputObserver()
    with observer(model), torch.no_grad():
        model(torch.randn(3, 4)), model(torch.randn(12, 4))
    program = observer.export()
    assert program.verify().verified, program.report
    return model, program


def switch(path: str, value: Any) -> Callable[[Any], None]:
    def put(model: Any) -> None:
        *owners, name = path.split(".")
        for part in owners:
            model = getattr(model, part)
        setattr(model, name, value)

    return put


SWITCHES = {
    "layer.drop.training": (switch("layer.drop.training", True), switch("layer.drop.training", False)),
    "layer.merged": (lambda model: model.layer.merged.append("one"), lambda model: model.layer.merged.clear()),
    "config.scale": (switch("config.scale", 3.0), switch("config.scale", 2.0)),
}


@pytest.mark.parametrize("path", SWITCHES)
def test_a_call_that_reads_what_was_switched_is_refused(made: tuple[Switched, Program], path: str) -> None:
    model, program = made
    x = torch.randn(5, 4)
    there, back = SWITCHES[path]
    with program.installed() as served, torch.no_grad():
        there(model)
        with pytest.raises(RejectedCallError, match=rf"^{path} of the model is .*, and was .* exported") as refused:
            model(x)
        back(model)
        found = model(x)
    assert refused.value.slug == "attribute-switched"
    assert sum(served.calls.values()) == 1
    torch.testing.assert_close(found, model(x))


def test_with_a_fallback_the_model_runs(made: tuple[Switched, Program]) -> None:
    model, program = made
    there, back = SWITCHES["config.scale"]
    x = torch.randn(2, 4)
    there(model)
    try:
        with program.installed(fallback=True) as served, torch.no_grad():
            found = model(x)
        torch.testing.assert_close(found, model(x))
    finally:
        back(model)
    assert served.eager == 1
    assert "config.scale of the model is 3.0, and was 2.0" in served.refusals[0]


def test_what_no_call_reads_may_change_and_so_may_what_the_model_changes(made: tuple[Switched, Program]) -> None:
    model, program = made
    x = torch.randn(4, 4)
    model.note, model.config.name, model.layer.drop.extra = "new", "large", SimpleNamespace(a=1)
    before = model.calls
    expected = model(x)
    with program.installed() as served:
        torch.testing.assert_close(model(x), expected)
    assert model.calls == before + 1
    assert served.eager == 0


def test_an_attribute_counts_where_a_graph_stands_for_a_way_that_reads_it(made: tuple[Switched, Program]) -> None:
    model, program = made
    few, many = torch.randn(4, 4), torch.randn(9, 4)
    model.longest = 5
    try:
        with program.installed():
            torch.testing.assert_close(model(few), program(few))
            with pytest.raises(RejectedCallError, match="longest of the model is 5, and was 3"):
                model(many)
    finally:
        model.longest = 3


def test_a_converted_program_knows_the_settings_of_the_export(made: tuple[Switched, Program]) -> None:
    model, program = made
    there, back = SWITCHES["layer.merged"]
    there(model)
    try:
        converted = program.to("onnx")
        with converted.installed(), pytest.raises(RejectedCallError, match=r"layer\.merged"):
            model(torch.randn(5, 4))
    finally:
        back(model)
