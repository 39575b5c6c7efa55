"""squeeze leaves an axis whose size is not 1, on every target: by the size of each call, or where no call has 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from onlooker import InputObserver, Program, RejectedCallError
from onlooker.targets.fixed_ranks import of_fixed_ranks


class Channels(torch.nn.Module):
    """Takes 8 channels, and squeezes axes of 8, 1, and of the sizes of calls."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = torch.nn.Conv1d(8, 8, 1)


class Squeezes(Channels):
    def forward(self, x: torch.Tensor) -> Any:
        x = self.mix(x)
        rows = x[:, None] + 1
        return x.squeeze(1) * 2, x.squeeze() * 3, rows.squeeze((1, 2)) * 4, x.squeeze(0).relu()


class Static(Channels):
    def forward(self, x: torch.Tensor) -> Any:
        x = self.mix(x)
        pooled = torch.nn.functional.avg_pool2d(x[:, None], (8, 1))
        return pooled.squeeze(2), x.squeeze(1), x.mean().squeeze(), x.clone().squeeze_(1)


def watched(model: torch.nn.Module) -> Program:
    observer = InputObserver()
    with torch.no_grad(), observer(model):
        for batch, length in ((2, 4), (3, 6), (5, 9)):
            model(torch.randn(batch, 8, length))
    return observer.export()


@pytest.mark.parametrize("model", [Squeezes, Static])
@pytest.mark.parametrize("target", ["onnx", "openvino"])
@pytest.mark.one_in(2)
def test_what_is_squeezed_is_right_or_refused(target: str, model: Callable[[], torch.nn.Module]) -> None:
    pytest.importorskip({"onnx": "onnxruntime"}.get(target, target), reason="the runtime")
    module = model()
    program = watched(module).to(target)
    assert program.verify().verified
    x = torch.randn(1, 8, 5)
    if model is Squeezes and target == "openvino":
        with pytest.raises(RejectedCallError, match="keeps an axis"):
            program(x)
        x = torch.randn(7, 8, 5)
    for found, expected in zip(program(x), module(x), strict=True):
        torch.testing.assert_close(found, expected)


def test_the_contract_of_a_runtime_that_fixes_ranks_says_why() -> None:
    program = watched(Squeezes())
    assert of_fixed_ranks(program.graphs, "onnx") == list(program.graphs)
    for target in ("aoti", "executorch", "openvino"):
        (graph,) = of_fixed_ranks(program.graphs, target)
        formulas = [constraint.formula for constraint in graph.contract.constraints]
        assert formulas == ["batch != 1", "x_dim_2 != 1"]
        assert "test_fixed_ranks.py" in graph.contract.constraints[0].because


def test_sizes_that_are_no_symbols_are_not_bound() -> None:
    program = watched(Static())
    assert of_fixed_ranks(program.graphs, "aoti")[0].contract == program.graphs[0].contract
