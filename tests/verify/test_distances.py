"""Programs of another precision: right conversions are verified, broken ones are named."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch

import onlooker
from mixed_layers import State, program_of_mixed, with_weights
from onlooker import InputObserver, OnlookerWarning, Program
from onlooker.core.errors import UsageError
from onlooker.core.verdict import Focus
from onlooker.disk.manifest import MANIFEST, write_manifest

PRECISIONS = ("int8", "int4", "int8-static")


@pytest.fixture(scope="module")
def mixed() -> Program:
    return program_of_mixed()


@pytest.fixture(scope="module")
def reduced(mixed: Program) -> dict[str, Program]:
    return {precision: mixed.to("torch", precision=precision) for precision in PRECISIONS}


@pytest.mark.filterwarnings("ignore:`isinstance:FutureWarning")
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_right_conversion_is_as_far_as_rounding_alone(reduced: dict[str, Program], precision: str) -> None:
    program = reduced[precision]
    tally = program.verify()
    assert tally.verdict == f"verified as {precision}"
    assert program.report.verified
    kinds = {one.kind: one for one in tally.distances}
    assert {"held-out", "unseen"} <= set(kinds)
    for one in kinds.values():
        assert one.rounding is not None
        assert one.program.count >= 100
        assert 0 < one.program.mean_error < 0.2
        assert one.program.mean_error < 1.3 * one.rounding.mean_error
        assert one.program.cosine > 0.97
    assert str(kinds["unseen"]) in " ".join(program.report.text(full=True).split())
    assert program.verify(seed=1).verified


def scale_twice(state: State) -> State:
    return {"watched.first.weight_scale": 2 * state["watched.first.weight_scale"]}


def transposed_block(state: State) -> State:
    """The first 32 rows of the first block of 32 columns, as if rows were columns."""
    stored = state["watched.first.weight_int4"].clone()
    bits = torch.cat([stored & 15, stored >> 4], 2)
    bits[:32, 0] = bits[:32, 0].t().clone()
    lower, upper = bits.chunk(2, 2)
    return {"watched.first.weight_int4": lower | (upper << 4)}


def mixed_axis(state: State) -> State:
    """A square layer by its other axis."""
    return {"watched.first.weight_int8": state["watched.first.weight_int8"].t().contiguous()}


def zero_point_off(state: State) -> State:
    """Each number of 4 bits one too high."""
    stored = state["watched.second.weight_int4"]
    lower, upper = stored & 15, stored >> 4
    moved = [torch.where(part < 15, part + 1, part) for part in (lower, upper)]
    return {"watched.second.weight_int4": moved[0] | (moved[1] << 4)}


def swapped_layers(state: State) -> State:
    one, other = "watched.first.weight", "watched.second.weight"
    return {
        f"{left}_{what}": state[f"{right}_{what}"]
        for left, right in ((one, other), (other, one))
        for what in ("int8", "scale")
    }


BROKEN: list[tuple[str, Callable[[State], State]]] = [
    ("int8", scale_twice),
    ("int4", scale_twice),
    ("int4", transposed_block),
    ("int8", mixed_axis),
    ("int4", zero_point_off),
    ("int8", swapped_layers),
]


@pytest.mark.filterwarnings("ignore:`isinstance:FutureWarning")
@pytest.mark.parametrize(("precision", "broken"), BROKEN, ids=lambda value: getattr(value, "__name__", value))
def test_a_broken_conversion_is_named(
    reduced: dict[str, Program], precision: str, broken: Callable[[State], State]
) -> None:
    program = reduced[precision]
    damaged = with_weights(program, broken(program.graphs[0].artifact.state_dict))
    tally = damaged.verify()
    assert not tally.verified
    failed = [check for check in tally.checks if not check.passed]
    assert {check.focus for check in failed} == {Focus.DISTANCE}
    assert "which does not explain it" in tally.verdict
    assert not damaged.report.verified


def test_a_range_that_no_call_had_is_named(mixed: Program) -> None:
    """Calibrated on calls of a quarter of the size, and of eight times the size."""
    calls = mixed._program.samples
    for factor in (0.25, 16.0):
        given = [{"x": sample.arguments()["x"] * factor} for sample in calls]
        tally = mixed.to("torch", precision="int8-static", calibration=given).verify()
        assert not tally.verified, factor
        assert "which does not explain it" in tally.verdict


def test_what_is_no_float_is_exact() -> None:
    class Best(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(64, 50)

        def forward(self, x: torch.Tensor) -> Any:
            scores = self.layer(x)
            return scores, scores.argmax(-1)

    torch.manual_seed(0)
    model, observer = Best().eval(), InputObserver()
    with observer(model), torch.no_grad():
        for rows in (40, 30):
            model(torch.randn(rows, 64))
    with pytest.warns(OnlookerWarning, match="serves less"):
        program = observer.export().to("torch", precision="int4")
    tally = program.verify()
    assert not tally.verified
    failed = [check for check in tally.checks if not check.passed]
    assert all("[1]" in check.note for check in failed), failed  # the places of the best, not the scores


def accuracy(labels: torch.Tensor, x: torch.Tensor) -> Callable[..., float]:
    def measured(run: Callable[..., Any]) -> float:
        return float((run(x).argmax(-1) == labels).float().mean())

    return measured


def test_a_metric_of_the_user_decides(mixed: Program, reduced: dict[str, Program]) -> None:
    model = mixed._program.watched.watched
    x = torch.randn(40, 8, 9)
    with torch.no_grad():
        labels = model(x).argmax(-1)
    program = reduced["int4"]
    passed = program.verify(metric=accuracy(labels, x), at_least=0.5)
    assert passed.verified
    check = next(check for check in passed.checks if check.focus is Focus.METRIC)
    assert "1 of the model; at least 0.5 is asked" in check.note
    asked = program.verify(metric=accuracy(labels, x), at_least=1.01)
    assert not asked.verified
    assert "metric measured" in asked.verdict
    for wrong in ({"metric": 3}, {"at_least": 0.9}, {"metric": max, "at_least": "all"}):
        with pytest.raises(UsageError, match="bad-metric"):
            program.verify(**wrong)
    with pytest.raises(UsageError, match="The metric of the model is None"):
        program.verify(metric=lambda run: None)


def test_numbers_are_compared_one_by_one_where_atol_is_given(reduced: dict[str, Program]) -> None:
    program = reduced["int4"]
    strict = program.verify(atol=1e-5)
    assert not strict.verified
    assert not strict.distances
    assert program.verify(**strict.accepting).verified


def test_a_saved_program_keeps_its_distances_and_is_judged_without_a_model(
    reduced: dict[str, Program], tmp_path: Any
) -> None:
    program = reduced["int8"]
    tally = program.verify()
    program.save(tmp_path / "out", values=True)
    loaded = onlooker.load(tmp_path / "out")
    assert loaded.tally.distances == tally.distances
    assert loaded.verify_saved().failed == 0
    assert loaded.verify(model=program._program.watched.watched).verified


@pytest.mark.filterwarnings("ignore:`isinstance:FutureWarning")
@pytest.mark.parametrize("broken", [scale_twice, transposed_block, zero_point_off], ids=lambda one: one.__name__)
def test_a_saved_program_that_is_broken_is_named_without_its_model(
    reduced: dict[str, Program], tmp_path: Any, broken: Callable[[State], State]
) -> None:
    """Beside what rounding alone gave when it was verified."""
    program = reduced["int4"]
    assert program.verify().verified
    program.save(tmp_path / "out", values=True)
    right = onlooker.load(tmp_path / "out").verify_saved()
    assert right.failed == 0
    assert right.verdict == "not verified as int4: only observed calls were tried"
    damaged = with_weights(program, broken(program.graphs[0].artifact.state_dict))
    damaged.save(tmp_path / "broken", values=True)
    shutil.copy(tmp_path / "broken" / "weights.safetensors", tmp_path / "out" / "weights.safetensors")
    names = [file.name for file in (tmp_path / "out").iterdir() if file.name != MANIFEST]
    write_manifest(tmp_path / "out", "torch", names)
    tally = onlooker.load(tmp_path / "out").verify_saved()
    assert tally.failed
    assert "which does not explain it" in tally.verdict
