"""Packed sequences, which torch.export cannot trace: refused with the reason and the line."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from onlooker import ExportError, InputObserver


class Given(torch.nn.Module):
    """A recurrent layer of packed sequences."""

    def __init__(self, layer: type[torch.nn.RNNBase]) -> None:
        super().__init__()
        self.layer = layer(4, 4, batch_first=True)

    def forward(self, packed: PackedSequence) -> torch.Tensor:
        return self.layer(packed)[0].data


class Made(Given):
    """One that packs and unpacks them itself."""

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        packed = pack_padded_sequence(x, lengths, batch_first=True)
        return pad_packed_sequence(self.layer(packed)[0], batch_first=True)[0]


def arguments(kind: type[Given], lengths: list[int]) -> tuple[Any, ...]:
    x = torch.randn(len(lengths), max(lengths), 4)
    sizes = torch.tensor(lengths)
    return (x, sizes) if kind is Made else (pack_padded_sequence(x, sizes, batch_first=True),)


@pytest.mark.parametrize("layer", [torch.nn.LSTM, torch.nn.GRU])
@pytest.mark.parametrize("kind", [Given, Made])
def test_packed_sequences_are_refused_with_the_reason(kind: type[Given], layer: type[torch.nn.RNNBase]) -> None:
    model, observer = kind(layer).eval(), InputObserver()
    with observer(model), torch.no_grad():
        model(*arguments(kind, [5, 3]))
        model(*arguments(kind, [6, 4, 2]))
    with pytest.raises(ExportError, match="reads packed sequences") as caught:
        observer.export()
    assert caught.value.slug == "packed-sequence"
    assert "padded tensor" in (caught.value.hint or "")


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_weights_that_are_packed_by_torch_are_refused_with_their_layer() -> None:
    layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    model = torch.ao.quantization.quantize_dynamic(layers, {torch.nn.Linear}, dtype=torch.qint8)
    observer = InputObserver()
    with observer(model), torch.no_grad():
        model(torch.randn(2, 8))
        model(torch.randn(3, 8))
    with pytest.raises(ExportError, match=r"object of C\+\+, 0\._packed_params\._packed_params") as caught:
        observer.export()
    assert caught.value.slug == "packed-weights"
