"""A program as one file: which paths ask for it, what stands in it, and what cannot."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import numpy
import pytest
import torch

import onlooker
from onlooker.targets.onnx import target as onnx_target

onnxruntime = pytest.importorskip("onnxruntime")


class Sided(torch.nn.Module):
    """Other operators from 24 rows on, and a large weight for both."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(32, 32)

    def forward(self, x: torch.Tensor, negate: bool = False) -> torch.Tensor:
        y = self.linear(x) if x.shape[0] > 24 else self.linear(x) * 2
        return -y if negate else y


def sided(*calls: tuple[int, bool]) -> onlooker.Program:
    torch.manual_seed(0)
    observer = onlooker.InputObserver()
    model = Sided().eval()
    with observer(model), torch.no_grad():
        for rows, negate in calls:
            model(torch.randn(rows, 32), negate)
    return observer.export(static={"x": [1]})


@pytest.fixture(scope="module")
def small() -> onlooker.Program:
    return onlooker.export(torch.nn.Linear(4, 2).eval(), torch.ones(1, 4))


def test_a_path_with_the_suffix_of_the_target_is_one_file(small: onlooker.Program, tmp_path: Path) -> None:
    small.save(tmp_path / "m.pt2")
    program = small.to("onnx")
    program.save(tmp_path / "m.onnx")
    assert sorted(os.listdir(tmp_path)) == ["m.onnx", "m.pt2"]
    x = torch.randn(7, 4)
    torch.testing.assert_close(torch.export.load(tmp_path / "m.pt2").module()(input=x)[0], small(x))
    found = onnxruntime.InferenceSession(str(tmp_path / "m.onnx")).run(None, {"input": x.numpy()})[0]
    numpy.testing.assert_allclose(found, small(x).numpy(), atol=1e-6)
    program.save(tmp_path / "v1.5")
    assert (tmp_path / "v1.5" / "onlooker.json").is_file()


def test_several_graphs_are_one_file_that_chooses_by_sizes(tmp_path: Path) -> None:
    program = sided((3, False), (30, False)).to("onnx")
    assert len(program.graphs) == 2
    program.save(tmp_path / "m.onnx")
    assert os.listdir(tmp_path) == ["m.onnx"]
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"))
    for rows in (1, 24, 25, 100):
        x = torch.randn(rows, 32)
        numpy.testing.assert_allclose(session.run(None, {"x": x.numpy()})[0], program(x).numpy(), atol=1e-6)


@pytest.mark.slow
def test_graphs_that_differ_by_a_constant_are_chosen_by_a_number(tmp_path: Path) -> None:
    program = sided((3, False), (3, True)).to("onnx")
    program.save(tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"))
    assert {value.name for value in session.get_inputs()} == {"x", "onlooker_graph"}


def test_a_call_that_no_graph_takes_is_refused(tmp_path: Path) -> None:
    observer, model = onlooker.InputObserver(), Sided().eval()
    with observer(model), torch.no_grad():
        model(torch.randn(3, 32)), model(torch.randn(30, 32))
    program = observer.export(static={"x": [1]}, ranges={"batch": (1, 40)}).to("onnx")
    program.save(tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"))
    with pytest.raises(Exception, match="out of data bounds"):
        session.run(None, {"x": numpy.zeros((41, 32), dtype=numpy.float32)})


def test_weights_that_are_too_large_stand_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(onnx_target, "MOST_IN_ONE_FILE", 1024)
    program = sided((3, False)).to("onnx")
    with caplog.at_level(logging.INFO, logger="onlooker"):
        program.save(tmp_path / "m.onnx")
    assert sorted(os.listdir(tmp_path)) == ["m.onnx", "m.onnx.data"]
    assert "stand in m.onnx.data" in caplog.text
    x = torch.randn(2, 32)
    found = onnxruntime.InferenceSession(str(tmp_path / "m.onnx")).run(None, {"x": x.numpy()})[0]
    numpy.testing.assert_allclose(found, program(x).numpy(), atol=1e-6)


def test_what_one_file_cannot_hold_is_an_error(small: onlooker.Program, tmp_path: Path) -> None:
    (tmp_path / "taken.pt2").mkdir()
    for error, name, options in (
        ("wrong-suffix", "m.onnx", {}),
        ("folder-only", "m.pt2", {"values": True}),
        ("folder-only", "m.pt2", {"beside": [tmp_path / "config.json"]}),
        ("not-a-file", "taken.pt2", {}),
    ):
        with pytest.raises(onlooker.OnlookerError, match=rf"\[{error}\]"):
            small.save(tmp_path / name, **options)
    with pytest.raises(onlooker.UnsupportedError, match="several-graphs"):
        sided((3, False), (30, False)).save(tmp_path / "m.pt2")
    with pytest.raises(onlooker.UsageError, match="folder-only"):
        onlooker.Programs({"one": small}).save(tmp_path / "m.pt2")
    assert os.listdir(tmp_path) == ["taken.pt2"]


def test_loading_one_file_says_how_to_run_it(small: onlooker.Program, tmp_path: Path) -> None:
    small.save(tmp_path / "m.pt2")
    with pytest.raises(onlooker.SavedFileError, match=r"torch.export.load\(.*\[single-file\]"):
        onlooker.load(tmp_path / "m.pt2")
    with pytest.raises(onlooker.SavedFileError, match="file-missing"):
        onlooker.load(tmp_path / "none.onnx")


def test_one_model_of_openvino_is_a_pair_of_files(small: onlooker.Program, tmp_path: Path) -> None:
    openvino = pytest.importorskip("openvino")
    program = small.to("openvino")
    program.save(tmp_path / "m.xml")
    assert sorted(os.listdir(tmp_path)) == ["m.bin", "m.xml"]
    x = torch.randn(3, 4)
    found = openvino.Core().compile_model(tmp_path / "m.xml", "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(x.numpy())[0]
    numpy.testing.assert_allclose(found, program(x).numpy(), atol=1e-5)
