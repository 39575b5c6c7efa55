"""Recurrent layers in OpenVINO, for numbers of steps and batches that the export did not have."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from onlooker.core.errors import ExportError
from target_models import call, exported

pytest.importorskip("openvino")

FEATURES, HIDDEN = 4, 6
#: bidirectional, batch_first, num_layers, bias
LAYOUTS = [(False, False, 2, True), (True, True, 2, True), (True, False, 1, False)]


class Recurrent(nn.Module):
    """One layer of every kind on the same input, from states that are given or not."""

    def __init__(self, bidirectional: bool, batch_first: bool, num_layers: int, bias: bool) -> None:
        super().__init__()
        options: dict[str, Any] = {"num_layers": num_layers, "bias": bias}
        options.update(batch_first=batch_first, bidirectional=bidirectional)
        self.n_states = num_layers * (2 if bidirectional else 1)
        self.batch_first = batch_first
        self.lstm = nn.LSTM(FEATURES, HIDDEN, **options)
        self.gru = nn.GRU(FEATURES, HIDDEN, **options)
        self.tanh = nn.RNN(FEATURES, HIDDEN, **options)
        self.relu = nn.RNN(FEATURES, HIDDEN, nonlinearity="relu", **options)

    def forward(self, x: torch.Tensor, hidden: torch.Tensor, cells: torch.Tensor) -> Any:
        return self.lstm(x, (hidden, cells)), self.gru(x, hidden), self.tanh(x), self.relu(x, hidden)


def inputs(model: Recurrent, batch: int, steps: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(batch + 10 * steps)
    rows = (batch, steps) if model.batch_first else (steps, batch)
    states = (model.n_states, batch, HIDDEN)
    return tuple(torch.randn(*shape, generator=generator) for shape in ((*rows, FEATURES), states, states))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.one_in(3)
def test_a_recurrent_layer_takes_any_steps_and_batch(layout: tuple[Any, ...]) -> None:
    torch.manual_seed(0)
    model = Recurrent(*layout).eval()
    program = exported(model, [call(*inputs(model, 2, 5)), call(*inputs(model, 3, 7))]).to("openvino")
    for batch, steps in ((3, 7), (2, 9), (1, 1), (4, 1), (1, 12)):
        args = inputs(model, batch, steps)
        with torch.no_grad():
            expected = model(*args)
        torch.testing.assert_close(program(*args), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_an_lstm_with_projections_is_refused() -> None:
    layer = nn.LSTM(FEATURES, HIDDEN, proj_size=3)
    program = exported(layer, [call(torch.ones(5, 2, FEATURES)), call(torch.ones(7, 3, FEATURES))])
    with pytest.raises(ExportError, match=r"no operators for aten.lstm.input"):
        program.to("openvino")
