"""Sizes of the example of an export are no sizes of the ONNX model."""

from __future__ import annotations

import pytest
import torch

from onlooker import InputObserver
from onlooker.targets.onnx.convert import shapes_of_the_trace_forgotten

onnx_ir = pytest.importorskip("onnx_ir")


def test_results_have_no_shape_inside_and_outputs_have_theirs_again() -> None:
    model = onnx_ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["" : 20]>'
        "sums (float[batch, 4] x) => (float[batch] sum_1)"
        "<int64[1] axes = {1}> { relu = Relu(x) sum_1 = ReduceSum<keepdims = 0>(relu, axes) }"
    )
    results = [value for node in model.graph for value in node.outputs]
    for value in results:
        value.shape = onnx_ir.Shape({"relu": ("batch", 4)}.get(value.name, ("batch",)))
    with shapes_of_the_trace_forgotten(model):
        assert [value.shape for value in results] == [None, None]
    assert [value.shape for value in results] == [None, onnx_ir.Shape(("batch",))]


class Cut(torch.nn.Module):
    """The first columns, of which an example may have fewer."""

    def __init__(self, is_last: bool) -> None:
        super().__init__()
        self.is_last = is_last

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, :8] if self.is_last else x[:, :8] * 2


@pytest.mark.parametrize("is_last", [True, False])
@pytest.mark.parametrize("watched", [(9, 14), (3, 5), (5, 14)])
@pytest.mark.one_in(4)
def test_a_cut_that_the_example_does_not_need_stays(watched: tuple[int, int], is_last: bool) -> None:
    model, observer = Cut(is_last), InputObserver()
    with observer(model):
        for batch, length in zip((2, 3), watched, strict=True):
            model(torch.randn(batch, length))
    program = observer.export(to="onnx")
    for length in (1, 7, 8, 9, 30):
        x = torch.randn(4, length)
        assert torch.equal(program(x), model(x))
    assert program.verify().verified
