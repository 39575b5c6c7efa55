"""Sizes that hold for the example of an export only are no sizes of the ONNX model."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from onlooker.targets.onnx.shapes import forget_narrow_shapes

onnx_ir = pytest.importorskip("onnx_ir")


class Sums(torch.nn.Module):
    """Two operators, of which the first one gives what an example may narrow."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x).sum(dim=1)


def converted(*relu: Any) -> Any:
    """The model of ONNX of :class:`Sums`, with a shape of ``relu`` as the converter may have written it."""
    model = onnx_ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["" : 20]>'
        "sums (float[batch, 4] x) => (float[batch] sum_1)"
        "<int64[1] axes = {1}> { relu = Relu(x) extra = Identity(relu) sum_1 = ReduceSum<keepdims = 0>(extra, axes) }"
    )
    for node in model.graph:
        for value in node.outputs:
            value.shape = onnx_ir.Shape({"relu": relu, "extra": ("batch", 4)}.get(value.name, ("batch",)))
    return model


@pytest.mark.parametrize(
    ("relu", "narrow"), [(("batch", 4), False), ((None, 4), False), ((3, 4), True), ((3, 4, 1), False)], ids=str
)
def test_shapes_are_left_out_when_one_of_them_is_narrow(relu: tuple[Any, ...], narrow: bool) -> None:
    batch = torch.export.Dim("batch")
    program = torch.export.export(Sums(), (torch.randn(3, 4),), dynamic_shapes=({0: batch},), strict=False)
    model = converted(*relu)
    assert forget_narrow_shapes(model, program) is narrow
    shapes = {value.name: value.shape for node in model.graph for value in node.outputs}
    assert (shapes["relu"] is None) is narrow
    assert (shapes["extra"] is None) is narrow
    assert shapes["sum_1"] == onnx_ir.Shape(("batch",))
