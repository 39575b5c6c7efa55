"""Sizes at which floats of 32 bits make another int are left out where a runtime computes in these."""

from __future__ import annotations

import math

import pytest
import torch

from onlooker import ExportError, InputObserver, Program, RejectedCallError
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


class Kept(torch.nn.Module):
    def forward(self, x: torch.Tensor, ratio: float) -> torch.Tensor:
        return x[:, : int(x.shape[1] * ratio)].sum(1) * ratio


def test_an_int_of_a_float_argument_is_exact_or_refused() -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("openvino")
    model, observer = Kept(), InputObserver()
    with observer(model):
        model(torch.randn(2, 10), 0.5)
        model(torch.randn(3, 14), 0.25)
    program = observer.export()
    converted = program.to("onnx")
    assert converted.verify().verified
    x = torch.ones(1, 50)
    assert converted(x, 0.58).item() == pytest.approx(28 * 0.58)
    with pytest.raises(ExportError, match=r"int of a float argument.*test_single_floats") as error:
        program.to("openvino")
    assert error.value.slug == "openvino-refused"


class Selected(torch.nn.Module):
    """The number of selected rows is no size of an input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x[x[:, 0] > 0]
        return x.sum() + torch.arange(int(rows.shape[0] * 0.58)).sum()


def test_a_number_of_selected_rows_bounds_no_size() -> None:
    observer = InputObserver()
    with observer(model := Selected()):
        model(torch.ones(4, 3))
        model(torch.ones(6, 3))
    program = observer.export()
    bound = of_single_floats(program.graphs, "openvino")
    assert [graph.contract for graph in bound] == [graph.contract for graph in program.graphs]
