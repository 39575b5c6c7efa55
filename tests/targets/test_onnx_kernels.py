"""Models in dtypes for which ONNX Runtime has no kernels: told before the conversion, kept, saved, not verified."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch

import onlooker
from onlooker import InputObserver, Program
from onlooker.core.errors import ExportError, OnlookerWarning, UnsupportedError
from onlooker.targets.onnx.runtime import session as onnx_session
from onlooker.targets.onnx.runtime.kernels import dtypes_of, why_not_computed
from onlooker.targets.onnx.runtime.settings import DEFAULT
from onlooker.zoo import tiny_model


class Typed(torch.nn.Module):
    """What comes and goes in one dtype, and is computed in another."""

    def __init__(self, dtype: torch.dtype, within: torch.dtype) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8, dtype=within)
        self.dtype, self.within = dtype, within

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x.to(self.within)).to(self.dtype)


def exported(model: Any, dtype: torch.dtype) -> Program:
    observer = InputObserver()
    with observer(model.eval()), torch.no_grad():
        for rows in (2, 3):
            model(torch.randn(rows, 8).to(dtype))
    return observer.export()


def typed(dtype: torch.dtype, within: torch.dtype) -> Program:
    torch.manual_seed(0)
    return exported(Typed(dtype, within), dtype)


@pytest.fixture(scope="module")
def program() -> Program:
    return typed(torch.bfloat16, torch.bfloat16)


@pytest.fixture(scope="module")
def converted(program: Program) -> Program:
    with pytest.warns(OnlookerWarning, match="no-kernels"):
        return program.to("onnx")


def test_the_user_is_told_before_the_conversion(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """When this fails, ONNX Runtime multiplies in bfloat16 on the CPU, and the limit may leave the documents."""

    def convert(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("the conversion began")

    monkeypatch.setattr(torch.onnx, "export", convert)
    words = r"does not compute in torch.bfloat16 \(CPUExecutionProvider: .*MatMul.*\.half\(\).*\[no-kernels\]"
    began = pytest.raises(ExportError, match="the conversion began")
    with warnings.catch_warnings(record=True) as told, began:
        warnings.simplefilter("always")
        program.to("onnx")
    (warning,) = told
    assert warning.filename == __file__
    with pytest.raises(OnlookerWarning, match=words):
        raise warning.message
    assert ".float()" in str(warning.message)


def test_the_model_is_kept_and_not_verified(converted: Program) -> None:
    tally = converted.verify()
    assert not tally.verified
    assert not tally.checks
    assert "main: CPUExecutionProvider: Could not find an implementation for" in tally.summary
    assert not converted.report.verified
    assert converted.report.verdict.startswith("not verified, since it cannot be run here: main: CPUExec")
    assert "converted where ONNX Runtime does not run it" in str(converted.report.to_dict()["graphs"])
    with pytest.raises(UnsupportedError, match=r"does not run main here.*\.half\(\).*\[no-kernels\]"):
        converted(torch.ones(4, 8, dtype=torch.bfloat16))


def test_a_program_that_does_not_run_here_is_saved_and_loaded(converted: Program, tmp_path: Path) -> None:
    converted.verify()
    converted.save(tmp_path / "out", values=True)
    model = onnx.load(str(tmp_path / "out" / "main.onnx"))
    onnx.checker.check_model(model)
    kinds = {value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output)}
    assert kinds == {onnx.TensorProto.BFLOAT16}
    assert json.loads((tmp_path / "out" / "report.json").read_text())["verdict"].startswith("not verified")
    loaded = onlooker.load(tmp_path / "out")
    assert loaded.tally == converted.tally
    assert loaded.tally.blocked
    assert [graph.exported_sizes for graph in loaded.graphs] == [graph.exported_sizes for graph in converted.graphs]
    assert not loaded.verify(model=Typed(torch.bfloat16, torch.bfloat16)).verified
    with pytest.raises(UnsupportedError, match="no-kernels"):
        loaded(torch.ones(4, 8, dtype=torch.bfloat16))


def test_it_is_verified_where_there_are_kernels(converted: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in for a provider that has kernels computes in float32, as a machine with them would about do."""
    started, casts = onnx_session.started, []

    def with_kernels(model: str | bytes, *args: Any, **kwargs: Any) -> Any:
        proto = onnx.load(model) if isinstance(model, str) else onnx.load_from_string(model)
        casts.append(model)
        return started(_in_float32(proto).SerializeToString(), *args, **kwargs)

    monkeypatch.setattr(onnx_session, "started", with_kernels)
    tally = converted.verify(providers=["CPUExecutionProvider"])
    assert casts
    assert tally.verified, converted.report
    monkeypatch.undo()
    assert not converted.verify().verified


def _in_float32(proto: Any) -> Any:
    """The model with a product and a sum in float32, between the casts of what goes in and out."""
    nodes = []
    for node in proto.graph.node:
        names = {name: f"{name}_wide" for name in (*node.input, *node.output)}
        nodes += [onnx.helper.make_node("Cast", [n], [names[n]], to=onnx.TensorProto.FLOAT) for n in node.input]
        wide = onnx.NodeProto()
        wide.CopyFrom(node)
        wide.input[:] = [names[name] for name in node.input]
        wide.output[:] = [names[name] for name in node.output]
        nodes += [wide]
        nodes += [onnx.helper.make_node("Cast", [names[n]], [n], to=onnx.TensorProto.BFLOAT16) for n in node.output]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    return proto


def test_a_model_in_bfloat16_that_computes_in_float32_is_no_such_model() -> None:
    program = typed(torch.bfloat16, torch.float32)
    assert dtypes_of(program.graphs[0]) == (torch.float32,)
    assert program.to("onnx").verify().verified


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_other_floats_are_computed(dtype: torch.dtype) -> None:
    program = typed(dtype, dtype)
    assert dtypes_of(program.graphs[0]) == (dtype,)
    assert why_not_computed(dtype, DEFAULT) == ""


@pytest.mark.parametrize("dtype", [torch.qint8, torch.float8_e4m3fn, torch.complex64], ids=str)
def test_nothing_is_said_of_dtypes_that_onnx_does_not_multiply(dtype: torch.dtype) -> None:
    assert why_not_computed(dtype, DEFAULT) == ""


def test_an_operator_that_was_not_asked_for_is_found_after_the_conversion() -> None:
    """ONNX Runtime multiplies in float64, and has no convolution of it."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Unflatten(1, (2, 4)), torch.nn.Conv1d(2, 3, 3, dtype=torch.float64))
    converted = exported(model, torch.float64).to("onnx")
    assert "Conv" in converted.graphs[0].blocked
    assert not converted.verify().verified


@pytest.mark.slow
def test_a_tiny_llama_in_bfloat16(tmp_path: Path) -> None:
    model = tiny_model("llama")
    observer = InputObserver()
    model.model.to(torch.bfloat16)
    with observer(model.model):
        model.watch()
    program = observer.export()
    with pytest.warns(OnlookerWarning, match="no-kernels"):
        converted = program.to("onnx")
    assert not converted.verify().verified
    converted.save(tmp_path / "out")
    assert not onlooker.load(tmp_path / "out").tally.verified
