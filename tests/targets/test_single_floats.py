"""Sizes at which floats of 32 bits make another int are left out where a runtime computes in these."""

from __future__ import annotations

import math

import pytest
import torch

from onlooker import InputObserver, Program, RejectedCallError
from onlooker.targets.single_floats import of_single_floats


class Share(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        return x[:, : int(length * 0.58)].sum(1) + math.ceil(length / 4)


@pytest.fixture(scope="module")
def program() -> Program:
    observer = InputObserver()
    with observer(model := Share()):
        model(torch.randn(2, 10))
        model(torch.randn(3, 14))
    return observer.export()


def test_sizes_are_left_out_where_floats_are_narrow(program: Program) -> None:
    assert of_single_floats(program.graphs, "onnx") == list(program.graphs)
    (graph,) = of_single_floats(program.graphs, "openvino")
    formulas = [one.formula for one in graph.contract.regions[0].constraints]
    added = [
        one for one in formulas if one not in {c.formula for c in program.graphs[0].contract.regions[0].constraints}
    ]
    assert added == [f"x_dim_1 != {size}" for size in (50, 100, 200, 400)] + ["x_dim_1 < 750"]


@pytest.mark.parametrize("target", ["onnx", "openvino"])
def test_what_is_answered_is_right(program: Program, target: str) -> None:
    pytest.importorskip({"onnx": "onnxruntime"}.get(target, target))
    converted = program.to(target)
    assert converted.verify().verified
    for size in (7, 50, 99, 100, 400, 401):
        x = torch.randn(1, size)
        if target == "openvino" and size in (50, 100, 400):
            with pytest.raises(RejectedCallError, match="floats in 32 bits"):
                converted(x)
        else:
            torch.testing.assert_close(converted(x), Share()(x), atol=1e-4, rtol=1e-4)
