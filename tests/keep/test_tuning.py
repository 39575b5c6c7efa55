"""The smallest program that holds a bound: layers in floats, the worst first, in a bounded number of runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import onlooker
from onlooker import InputObserver, Program, SavedFileError, UsageError
from onlooker.keep import tuning
from onlooker.targets.integers.damage import damage_of_layers


class Uneven(torch.nn.Module):
    """Four layers, of which ``second`` has an input sixty times as large as the others: x is (batch, 64)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)
        self.blocks = torch.nn.ModuleList([torch.nn.Linear(64, 64)])
        self.head = torch.nn.Linear(64, 10)
        with torch.no_grad():
            self.second.weight[:, 3] *= 60

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in (self.first, self.second, *self.blocks):
            x = torch.relu(layer(x))
        return self.head(x)


@pytest.fixture(scope="module")
def program() -> Program:
    torch.manual_seed(0)
    model, observer = Uneven().eval(), InputObserver()
    with observer(model, keep=64), torch.no_grad():
        for rows in (2, 3, 5, 8, 4, 9):
            model(torch.randn(rows, 64))
    return observer.export()


@pytest.mark.parametrize("target", ["torch", "onnx", "openvino"])
@pytest.mark.parametrize("precision", ["int8", "int8-static"])
@pytest.mark.one_in(2)
def test_a_layer_in_floats_is_left_as_it_is(program: Program, target: str, precision: str) -> None:
    """Every target comes nearer to the model with the uneven layer in floats than with any other."""
    pytest.importorskip({"torch": "torch", "onnx": "onnxruntime", "openvino": "nncf"}[target])
    if target == "openvino" and precision == "int8":
        precision = "int4"
    errors = {}
    for layers in (["second"], ["first"]):
        made = program.to(target, precision=precision, float_layers=layers)
        assert made.graphs[0].options["float_layers"] == layers[0]
        tally = made.verify(trials=12)
        assert not [check for check in tally.checks if not check.passed]
        far = {one.kind: one.program.mean_error for one in tally.distances}
        errors[layers[0]] = far.get("calibration", far["held-out"])  # no number is beyond the bounds there
    assert errors["second"] < errors["first"]


def test_a_path_stands_for_all_layers_in_it(program: Program) -> None:
    made = program.to("torch", precision="int4", float_layers=["blocks", "head"])
    state = made.graphs[0].artifact.state_dict
    floats = {name for name in state if name.endswith(".weight")}
    assert floats == {"watched.blocks.0.weight", "watched.head.weight"}
    assert {"watched.first.weight_int4", "watched.second.weight_int4"} <= set(state)


def test_layers_that_are_not_there_are_refused(program: Program) -> None:
    for wrong in (["heads"], "heads", 3, [3]):
        with pytest.raises(UsageError, match="no-such-layer") as refusal:
            program.to("torch", precision="int8", float_layers=wrong)
    assert refusal.value.hint == "There are blocks.0, first, head, second."
    with pytest.raises(UsageError, match=r"precision='fp16' makes no integers.*\[bad-variant\]"):
        program.to("onnx", precision="fp16", float_layers=["head"])


def test_the_worst_layer_is_found_by_its_result(program: Program) -> None:
    (graph,) = program.graphs
    calls = [[sample.arguments()["x"]] for sample in program._program.samples]
    damage = damage_of_layers(graph, "int8", calls)
    assert list(damage) == ["first", "second", "blocks.0", "head"]
    assert damage["second"] > 2 * max(far for layer, far in damage.items() if layer != "second")


def test_as_few_layers_as_hold_the_bound_are_in_floats(program: Program, tmp_path: Path) -> None:
    whole = program.tune("torch", error=0.2, precisions=["int8"])
    assert [one.title for one in whole.steps] == ["floats", "int8"]
    found = program.tune("torch", error=0.015, precisions=["int8"], into=tmp_path)
    assert found.step is not None
    assert found.step.float_layers == ("second",)
    assert found.step.error is not None
    assert found.step.error <= 0.015
    assert found.program.verify().verdict == "verified as int8"
    assert found.program.graphs[0].options == {"precision": "int8", "float_layers": "second"}
    text = str(found)
    assert text.splitlines()[-1] == "in floats: second"
    assert [line[0] for line in text.splitlines()[1:-1]] == [" ", " ", "*"]
    assert found.to_dict()["best"] == 2
    sizes = [one.bytes for one in found.steps]
    assert sizes[1] < sizes[2] < sizes[0]


def counted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The conversions that are made from here on."""
    made: list[Any] = []
    convert: Callable[..., Any] = tuning.converted

    def counting(*args: Any) -> Any:
        made.append(args[2])
        return convert(*args)

    monkeypatch.setattr(tuning, "converted", counting)
    return made


def test_a_search_is_bounded_and_goes_on(program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = counted(monkeypatch)
    first = program.tune("torch", error=0.015, precisions=["int8"], runs=2, into=tmp_path)
    assert first.left_out == 1
    assert first.step is not None
    assert first.step.precision == ""
    assert str(first).endswith("no run is left: runs= allows more steps")
    assert len(made) == 2
    again = program.tune("torch", error=0.015, precisions=["int8"], runs=1, into=tmp_path)
    assert again.steps[:2] == first.steps
    assert again.step is not None
    assert again.step.float_layers == ("second",)
    assert made[2:] == [{"precision": "int8", "float_layers": ("second",)}, {}]  # the time is beside floats
    other = program.tune("torch", error=0.3, precisions=["int8"], into=tmp_path)
    assert len(made) > 4, "another bound is another question"
    assert other.step is not None
    assert other.step.title == "int8"
    (tmp_path / "tuning.json").write_text("{")
    with pytest.raises(SavedFileError, match="file-damaged"):
        program.tune("torch", error=0.015, into=tmp_path)


def test_a_bound_that_nothing_holds(program: Program) -> None:
    found = program.tune("torch", metric=lambda run: 0.0, at_least=1.0, precisions=["int8"], runs=3)
    assert found.step is None
    assert not any(one.holds for one in found.steps)
    assert "precision" not in found.program.graphs[0].options


def test_words_that_are_no_search(program: Program) -> None:
    with pytest.raises(UsageError, match="no-bound"):
        program.tune("torch")
    for wrong in (0, 1.5, "all", True):
        with pytest.raises(UsageError, match="bad-runs"):
            program.tune("torch", error=0.1, runs=wrong)
    for wrong in (-1, "near", True):
        with pytest.raises(UsageError, match="bad-tolerance"):
            program.tune("torch", error=wrong)
    with pytest.raises(UsageError, match="'torch' has no precision 'fp16'"):
        program.tune("torch", error=0.1, precisions=["fp16"])


def test_steps_are_saved_as_they_are(tmp_path: Path, program: Program) -> None:
    found = program.tune("torch", agreement=0.5, precisions=["int8"], runs=2, into=tmp_path)
    found.program.save(tmp_path / "program")
    loaded = onlooker.load(tmp_path / "program")
    assert loaded.report.verified
    assert replace(found.steps[0], asked="") != found.steps[0]


def test_layers_in_floats_are_not_rounded_beside_the_program(program: Program) -> None:
    """What is allowed is the rounding of the other layers alone."""
    made = program.to("torch", precision="int8", float_layers=["second"])
    assert made.verify().verdict == "verified as int8"
    far = {one.kind: one for one in made.verify().distances}["held-out"]
    whole = {one.kind: one for one in program.to("torch", precision="int8").verify().distances}["held-out"]
    assert far.rounding is not None
    assert whole.rounding is not None
    assert far.rounding.mean_error < whole.rounding.mean_error / 2
