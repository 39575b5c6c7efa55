"""Models that torchao quantised: it is installed beside ExecuTorch alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import onlooker
from onlooker import InputObserver

pytestmark = pytest.mark.filterwarnings("ignore")


def configurations() -> dict[str, Any]:
    quantization = pytest.importorskip("torchao.quantization")
    granularity = pytest.importorskip("torchao.quantization.granularity")
    return {
        "bytes": quantization.Int8WeightOnlyConfig(),
        "blocks of 4 bits": quantization.IntxWeightOnlyConfig(
            weight_dtype=torch.int4, granularity=granularity.PerGroup(32)
        ),
    }


@pytest.mark.parametrize("name", ["bytes", "blocks of 4 bits"])
def test_a_model_of_torchao_is_exported_and_saved(tmp_path: Path, name: str) -> None:
    configuration = configurations()[name]
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.ReLU(), torch.nn.Linear(96, 64)).eval()
    pytest.importorskip("torchao.quantization").quantize_(model, configuration)
    observer, x = InputObserver(), torch.randn(4, 5, 64)
    with observer(model), torch.no_grad():
        for batch, length in ((2, 3), (4, 5), (3, 7)):
            model(torch.randn(batch, length, 64))
        wanted = model(x)
    program = observer.export()
    for target in ("torch", "onnx", "openvino"):
        made = program.to(target)
        assert made.verify().verdict.startswith("verified")
        made.save(tmp_path / target)
        torch.testing.assert_close(onlooker.load(tmp_path / target)(x), wanted, rtol=1e-4, atol=1e-4)
    kinds = [node.op_type for node in program.to("onnx").graphs[0].artifact.model.graph]
    assert ("MatMulNBits" if "4 bits" in name else "DequantizeLinear") in kinds
    assert not any("torchao" in str(node.target) for node in program.graphs[0].artifact.graph.nodes)
