"""Recurrent layers take any number of steps: one graph, for torch and for ONNX."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from onlooker import InputObserver

LAYERS = {
    "lstm": lambda: nn.LSTM(4, 3, batch_first=True),
    "steps first": lambda: nn.LSTM(4, 3),
    "both ways": lambda: nn.LSTM(4, 3, 2, batch_first=True, bidirectional=True),
    "projected": lambda: nn.LSTM(4, 6, proj_size=2, batch_first=True),
    "without biases": lambda: nn.LSTM(4, 3, bias=False, batch_first=True),
    "gru": lambda: nn.GRU(4, 3, 2, batch_first=True, bidirectional=True),
    "tanh": lambda: nn.RNN(4, 3, batch_first=True),
    "relu both ways": lambda: nn.RNN(4, 3, nonlinearity="relu", bias=False, bidirectional=True),
    "relu": lambda: nn.RNN(4, 3, 2, nonlinearity="relu", batch_first=True),
}


class Recurrent(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x)


def watched(model: nn.Module) -> InputObserver:
    observer = InputObserver()
    with observer(model), torch.no_grad():
        for shape in ((2, 5, 4), (3, 9, 4)):
            model(torch.randn(shape))
    return observer


@pytest.mark.one_in(3)
@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("name", LAYERS)
def test_one_graph_takes_any_number_of_steps(name: str) -> None:
    model = Recurrent(LAYERS[name]()).eval()
    program = watched(model).export()
    assert len(program.graphs) == 1
    assert program.verify().verified
    for shape in ((1, 1, 4), (2, 1, 4), (1, 7, 4), (4, 31, 4)):
        x = torch.randn(shape)
        with torch.no_grad():
            torch.testing.assert_close(program(x), model(x))


@pytest.mark.parametrize("name", ["both ways", "gru", "tanh", "relu", "relu both ways"])
@pytest.mark.one_in(4)
def test_a_model_of_onnx_takes_any_number_of_steps(name: str) -> None:
    model = Recurrent(LAYERS[name]()).eval()
    program = watched(model).export(to="onnx")
    tally = program.verify()
    assert tally.verified, tally
    for shape in ((2, 5, 4), (3, 9, 4), (4, 31, 4)):
        x = torch.randn(shape)
        with torch.no_grad():
            torch.testing.assert_close(program(x), model(x), atol=1e-5, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:The tensor attributes")
def test_steps_become_a_constant_without_the_repair() -> None:
    x = torch.randn(3, 7, 4)
    exported = torch.export.export(
        nn.LSTM(4, 3, batch_first=True), (x,), dynamic_shapes=({1: torch.export.Dim.AUTO},), strict=False
    )
    (given,) = [node for node in exported.graph.nodes if node.op == "placeholder"][-1:]
    assert str(given.meta["val"].shape[1]) == "7"


class OfASign(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(4, 3, batch_first=True)

    def forward(self, x: torch.Tensor) -> Any:
        read, _ = self.layer(x)
        return read + 1 if x.sum() > 0 else read - 1


@pytest.mark.slow
def test_an_lstm_beside_a_branch_on_values_is_converted() -> None:
    pytest.importorskip("onnxscript")
    model, observer = OfASign().eval(), InputObserver()
    with observer(model), torch.no_grad():
        model(torch.ones(2, 5, 4))
        model(torch.ones(3, 9, 4))
    program = observer.export().to("onnx")
    x = torch.rand(4, 7, 4)
    torch.testing.assert_close(program(x), model(x), atol=1e-5, rtol=1e-5)
