"""Models of OpenVINO with smaller weights: how near they come, what is stored, and what cannot have any."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import onlooker
from onlooker import Program
from onlooker.core.errors import ExportError, MissingPackageError, UsageError
from onlooker.targets.target import read_again
from onlooker.targets.targets import target_of
from onlooker.zoo import tiny_model

openvino = pytest.importorskip("openvino")


class Scorer(torch.nn.Module):
    """Scores of 32 tokens for x of shape (batch, length, 64), by a layer of 64 inputs and one of 40."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(64, 40)
        self.head = torch.nn.Linear(40, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.up(x)))


@pytest.fixture(scope="module")
def scorer() -> Program:
    torch.manual_seed(0)
    model, observer = Scorer().eval(), onlooker.InputObserver()
    with observer(model), torch.no_grad():
        for batch, length in ((2, 5), (3, 9)):
            model(torch.randn(batch, length, 64))
    return observer.export()


@pytest.mark.parametrize(("precision", "share"), [("fp16", 0.6), ("int8", 0.5), ("int4", 0.45), ("int8-static", 0.5)])
@pytest.mark.one_in(2)
def test_a_program_of_each_precision_is_near_the_model_and_smaller(
    scorer: Program, tmp_path: Path, precision: str, share: float
) -> None:
    whole, smaller = scorer.to("openvino"), scorer.to("openvino", precision=precision)
    assert smaller.verify().verdict == f"verified as {precision}"
    assert {one.kind for one in smaller.tally.distances} >= {"held-out", "unseen"}
    whole.save(tmp_path / "whole")
    smaller.save(tmp_path / "smaller")
    sizes = [(tmp_path / folder / "main.bin").stat().st_size for folder in ("whole", "smaller")]
    assert sizes[1] < share * sizes[0]
    loaded = onlooker.load(tmp_path / "smaller")
    x = torch.randn(4, 3, 64)
    torch.testing.assert_close(loaded(x), smaller(x), rtol=0, atol=1e-6)


def test_a_scale_that_is_twice_as_large_is_named(scorer: Program) -> None:
    """In the model that OpenVINO runs, the scales of the first layer are written anew."""
    program = scorer.to("openvino", precision="int8")
    graph = program.graphs[0]
    model = graph.artifact
    multiply = next(node for node in model.get_ordered_ops() if node.get_type_name() == "Multiply")
    scale = multiply.input_value(1).get_node()
    assert scale.get_type_name() == "Constant"
    twice = openvino.opset13.constant(2 * scale.data)
    multiply.input(1).replace_source_output(twice.output(0))
    damaged = Program(program._program.with_graphs(read_again(target_of("openvino"), [graph])))
    tally = damaged.verify()
    assert "which does not explain it" in tally.verdict


def test_nncf_says_and_reports_nothing(scorer: Program, capfd: pytest.CaptureFixture[str]) -> None:
    scorer.to("openvino", precision="int8-static")
    assert capfd.readouterr().out == ""
    wrapper = sys.modules["nncf.telemetry.wrapper"]
    assert not isinstance(wrapper.telemetry, wrapper.NNCFTelemetry)


def test_integers_need_nncf(scorer: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nncf", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'onlooker\[precision\]'"):
        scorer.to("openvino", precision="int8")
    assert scorer.to("openvino", precision="fp16").verify().verified


@pytest.mark.slow
def test_a_decoder_with_its_cache_inside_has_smaller_weights(tmp_path: Path) -> None:
    tiny, observer = tiny_model("llama"), onlooker.InputObserver()
    with observer(tiny.model), torch.no_grad():
        tiny.watch()
    program = observer.export(to="openvino", precision="int8", stateful=True)
    tally = program.verify(agreement=0.8)
    assert tally.verified, tally.verdict
    assert tally.scores("unseen").count > 50
    program.save(tmp_path / "program")
    kinds = {str(node.get_element_type()) for node in program.graphs[0].artifact.get_ordered_ops() if not node.inputs()}
    assert any("int8" in kind for kind in kinds)


def test_a_model_without_a_matrix_of_weights_is_refused() -> None:
    class Doubled(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    with pytest.raises(ExportError, match=r"main cannot have weights of int4: .*\[openvino-not-quantised\]"):
        onlooker.export(Doubled(), torch.ones(2, 3), to="openvino", precision="int4")


@pytest.mark.parametrize("precision", ["int3", 8, "INT8", True, "bf16"])
def test_a_precision_that_there_is_not_is_refused(scorer: Program, precision: Any) -> None:
    with pytest.raises(UsageError, match=r"It has fp16, int8, int4, int8-static\. \[bad-variant\]"):
        scorer.to("openvino", precision=precision)
