"""Exports of other makers: the right ones hold, and each fault of the others is named."""

from __future__ import annotations

import functools
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import onlooker
from onlooker.foreign.exported import Declared
from onlooker.foreign.findings import Kind
from onlooker.foreign.open import open_exported
from onlooker.testing import assert_export_holds

sys.path.insert(0, str(Path(__file__).parents[1]))
from foreign_exports import (
    BRANCH,
    Branching,
    Pooled,
    arguments,
    as_openvino,
    branching_onnx,
    branching_program,
    branching_pt2,
    pooled_onnx,
    pooled_program,
    pooled_pt2,
)

#: by fault the kind of the first finding, and the axis, input or output that it names
ONNX_FAULTS = {
    "baked batch": (Kind.SPECIALIZED, "x.shape[0]"),
    "batch baked inside": (Kind.OUTPUT, "output['rows']"),
    "constant sequence": (Kind.SPECIALIZED, "x.shape[1]"),
    "constant length inside": (Kind.REFUSED, "x.shape[1]"),
    "mask of other rows": (Kind.TIED, "mask.shape[1]"),
    "ignored mask": (Kind.INPUT, "mask"),
    "transposed output": (Kind.OUTPUT, "output['rows']"),
    "dropped output": (Kind.OUTPUT, "output['rows']"),
    "exchanged outputs": (Kind.OUTPUT, "output['rows']"),
    "wrong output dtype": (Kind.OUTPUT, "output['rows']"),
    "wrong input dtype": (Kind.INPUT, "scale"),
    "swapped inputs": (Kind.INPUT, "scale"),
    "swapped parts": (Kind.INPUT, "x"),
    "other weights": (Kind.OUTPUT, "output['rows']"),
    "noise": (Kind.UNSTABLE, "outputs"),
    "baked argument": (Kind.INPUT, "shift"),
    "unknown input": (Kind.INPUT, "main"),
}
#: OpenVINO keeps no names of sizes, so that the tied sizes are said of the call
OPENVINO_FAULTS = {fault: ONNX_FAULTS[fault] for fault in ONNX_FAULTS if fault != "mask of other rows"}
TORCH_FAULTS = {
    "baked batch": (Kind.SPECIALIZED, "x.shape[0]"),
    "narrow batch": (Kind.NARROW, "x.shape[0]"),
    "constant sequence": (Kind.SPECIALIZED, "x.shape[1]"),
    "constant past": (Kind.SPECIALIZED, "past.shape[1]"),
    "ignored mask": (Kind.INPUT, "mask"),
    "transposed output": (Kind.OUTPUT, "output['rows']"),
    "dropped output": (Kind.OUTPUT, "output['rows']"),
    "exchanged outputs": (Kind.OUTPUT, "output['rows']"),
    "wrong output dtype": (Kind.OUTPUT, "output['rows']"),
    "swapped inputs": (Kind.INPUT, "scale"),
    "other weights": (Kind.OUTPUT, "output['rows']"),
}

pooled = functools.cache(pooled_program)
branching = functools.cache(branching_program)


def named(report: onlooker.ExportReport) -> tuple[Kind, str]:
    assert not report.holds
    first = report.failures[0]
    return first.kind, first.where


@pytest.mark.parametrize("fault", ONNX_FAULTS)
@pytest.mark.one_in(2)
def test_each_fault_of_an_onnx_file_is_named(fault: str) -> None:
    report = onlooker.verify_export(pooled(), pooled_onnx(fault))
    assert named(report) == ONNX_FAULTS[fault], str(report)


@pytest.mark.parametrize("fault", OPENVINO_FAULTS)
@pytest.mark.one_in(2)
def test_each_fault_of_an_openvino_file_is_named(fault: str, tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    report = onlooker.verify_export(pooled(), as_openvino(pooled_onnx(fault), tmp_path))
    assert named(report) == OPENVINO_FAULTS[fault], str(report)


@pytest.mark.filterwarnings("ignore:Using None as a dynamic shape")
@pytest.mark.parametrize("fault", TORCH_FAULTS)
@pytest.mark.one_in(2)
def test_each_fault_of_a_torch_program_is_named(fault: str) -> None:
    report = onlooker.verify_export(pooled(), pooled_pt2(fault))
    assert named(report) == TORCH_FAULTS[fault], str(report)


def test_a_right_file_holds(tmp_path: Path) -> None:
    report = onlooker.verify_export(pooled(), pooled_onnx())
    assert report.holds, str(report)
    assert not report.findings
    x, n = (row for row in report.axes if row.axis.startswith("x."))
    assert (x.asked, x.obtained) == ("batch", "batch")
    assert x.held == ("0: not asked", "1: holds", "2: holds", "3: holds", "4, 9: holds")
    assert n.held[1:4] == ("1: holds", "2: holds", "5: holds")
    onnx = importlib.import_module("onnx")
    onnx.save(pooled_onnx(), tmp_path / "right.onnx")
    assert onlooker.verify_export(pooled(), tmp_path / "right.onnx").holds


def test_a_right_openvino_model_holds(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    assert onlooker.verify_export(pooled(), as_openvino(pooled_onnx(), tmp_path)).holds


def test_a_size_that_is_left_open_is_a_remark() -> None:
    report = onlooker.verify_export(pooled(), pooled_onnx("unrelated mask"))
    assert report.holds
    (finding,) = report.findings
    assert (finding.kind, finding.where) == (Kind.UNRELATED, "mask.shape[1]")


def test_the_guard_of_a_sum_is_named() -> None:
    report = onlooker.verify_export(pooled(), pooled_pt2())
    assert named(report) == (Kind.REFUSED, "mask.shape[1]")
    assert "mask.size()[1] >= 4" in report.failures[0].text


@pytest.mark.parametrize("made", [branching_pt2, branching_onnx])
def test_a_baked_branch_is_named_with_its_line(made: Any) -> None:
    report = onlooker.verify_export(branching(), made())
    assert named(report) == (Kind.WRONG, "x.shape[0]")
    text = report.failures[0].text
    assert "batch = 1" in text
    assert BRANCH in text


def test_the_sizes_of_a_recording_are_tried(tmp_path: Path) -> None:
    model, observer = Pooled(), onlooker.InputObserver()
    with observer(model), torch.no_grad():
        model(**arguments(7, 3, 11))
    report = onlooker.verify_export(pooled(), pooled_onnx(), recording=observer.recording())
    assert "batch=7, x_dim_1=3, past_dim_1=11" in [check.label for check in report.tally.checks]
    assert not report.remarks


def test_a_recorded_call_outside_is_a_remark() -> None:
    model, observer = Pooled().double(), onlooker.InputObserver()
    with observer(model), torch.no_grad():
        model(**{name: value.double() for name, value in arguments(2, 3, 4).items()})
    report = onlooker.verify_export(pooled(), pooled_onnx(), recording=observer.recording())
    assert report.remarks[0].startswith("call 0 of the recording is outside")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*script_method", "ignore:.*LeafSpec")
def test_a_package_of_machine_code_runs_where_it_is_allowed(tmp_path: Path) -> None:
    path = tmp_path / "linear.pt2"
    model = torch.nn.Linear(4, 2)
    shapes = {"input": {0: torch.export.Dim.DYNAMIC}}
    program = torch.export.export(model, (torch.randn(3, 4),), dynamic_shapes=shapes)
    torch._inductor.aoti_compile_and_package(program, package_path=str(path))
    calls = [((torch.randn(2, 4),), {}), ((torch.randn(5, 4),), {})]
    with pytest.raises(onlooker.UsageError, match=r"machine-code"):
        assert_export_holds(model, path, calls)
    assert assert_export_holds(model, path, calls, machine_code=True).holds


def test_a_saved_program_of_torch_holds(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 2)
    shapes = {"input": {0: torch.export.Dim.DYNAMIC}}
    program = torch.export.export(model, (torch.randn(3, 4),), dynamic_shapes=shapes)
    torch.export.save(program, tmp_path / "linear.pt2")
    calls = [((torch.randn(2, 4),), {}), ((torch.randn(5, 4),), {})]
    assert assert_export_holds(model, tmp_path / "linear.pt2", calls).holds


@pytest.mark.slow
def test_the_assertion_has_the_report() -> None:
    torch.manual_seed(0)
    model = Branching()
    calls = [{"x": torch.randn(3, 4) * 100}, {"x": torch.randn(5, 6) * 100}]
    with pytest.raises(AssertionError, match=r"x\.shape\[0\]: wrong at batch = 1"):
        assert_export_holds(model, branching_pt2(), calls)


def test_what_cannot_be_opened_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(onlooker.UsageError, match=r"model-not-loaded"):
        open_exported(tmp_path / "none.onnx")
    (tmp_path / "bad.pt2").write_bytes(b"no archive")
    with pytest.raises(onlooker.UsageError, match=r"model-not-loaded"):
        open_exported(tmp_path / "bad.pt2")
    with pytest.raises(onlooker.ArgumentKindError, match=r"not-a-model"):
        open_exported(3)
    manifest = {"components": {"model": {"file": "../model.onnx"}}}
    (tmp_path / "export.json").write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(onlooker.UsageError, match=r"lies outside"):
        open_exported(tmp_path)
    manifest = {"components": {"encode": {"file": "a.onnx"}, "decode": {"file": "b.onnx"}}}
    (tmp_path / "export.json").write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(onlooker.UsageError, match=r"encode, decode.*no-such-component"):
        open_exported(tmp_path)


def test_a_graph_that_the_calls_do_not_have_is_an_error() -> None:
    with pytest.raises(onlooker.UsageError, match=r"no-such-graph"):
        onlooker.verify_export(pooled(), pooled_onnx(), only=["decode"])


def test_a_declared_size_allows_what_it_says() -> None:
    assert Declared("n", 2, 8).allows(8)
    assert not Declared("n", 2, 8).allows(9)
    assert Declared("", 2, 2).is_constant
    assert not Declared("n").is_constant


@pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec:FutureWarning")
@pytest.mark.parametrize(("axes", "found"), [({0, 1}, None), ({1}, (Kind.SPECIALIZED, "x.shape[0]"))])
@pytest.mark.slow
def test_a_file_of_torch_onnx_is_judged(axes: set[int], found: tuple[Kind, str] | None, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    shapes = {
        name: dict.fromkeys(axes & own, torch.export.Dim.DYNAMIC)
        for name, own in {"x": {0, 1}, "past": {0, 1}, "mask": {0, 1}, "scale": {0}, "shift": {0}}.items()
    }
    given = arguments(2, 5, 3)
    torch.onnx.export(Pooled().eval(), (), tmp_path / "m.onnx", kwargs=given, dynamic_shapes=shapes, verbose=False)
    report = onlooker.verify_export(pooled(), tmp_path / "m.onnx")
    assert report.holds == (found is None), str(report)
    if found is not None:
        assert named(report) == found


class Summed(torch.nn.Module):
    """Rows that are summed, and multiplied by their number."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return (x * mask.unsqueeze(-1)).sum(1) * x.shape[0]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["torch", pytest.param("onnx", marks=pytest.mark.slow)])
def test_the_repair_that_is_printed_exports_it_right(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "onnx":
        pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    model, observer = Summed().eval(), onlooker.InputObserver()
    with observer(model):
        for rows, length in ((2, 5), (3, 6)):
            model(torch.randn(rows, length, 4), torch.ones(rows, length))
    example, shapes = (torch.randn(2, 5, 4), torch.ones(2, 5)), {"x": {1: "n"}, "mask": {1: "n"}}
    if kind == "onnx":
        onlooker.onnx_export(model, example, "wrong.onnx", dynamic_shapes=shapes)
        wrong: Any = "wrong.onnx"
    else:
        length = torch.export.Dim("n")
        wrong = torch.export.export(model, example, dynamic_shapes={"x": {1: length}, "mask": {1: length}})
    report = onlooker.verify_export(observer, wrong)
    assert not report.holds
    assert report.to_dict()["repair"] == report.repair
    printed = str(report).partition("# the export that would be right")[2].partition("\n")[2]
    exec(printed, {"model": model})
    file = "main.onnx" if kind == "onnx" else "main.pt2"
    again = onlooker.verify_export(observer, file)
    assert again.holds, again
    assert not again.repair
    assert "the export that would be right" not in str(again)


def test_no_repair_is_printed_where_axes_are_right() -> None:
    model, observer = torch.nn.Linear(4, 2), onlooker.InputObserver()
    with observer(model):
        model(torch.randn(2, 4)), model(torch.randn(3, 4))
    other = torch.nn.Linear(4, 2)
    rows = torch.export.Dim("rows")
    report = onlooker.verify_export(
        observer, torch.export.export(other, (torch.randn(5, 4),), dynamic_shapes=({0: rows},))
    )
    assert not report.holds
    assert not report.repair
