"""Weights in an object of C++, which torch.export does not read."""

from __future__ import annotations

import pytest
import torch

from onlooker import ExportError, InputObserver


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


class WithScript(torch.nn.Module):
    """A model of which a part was scripted."""

    def __init__(self) -> None:
        super().__init__()
        self.part = torch.jit.script(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(x)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_part_in_torchscript_is_named() -> None:
    observer, model = InputObserver(), WithScript().eval()
    with observer(model), torch.no_grad():
        model(torch.randn(2, 4))
        model(torch.randn(3, 4))
    with pytest.raises(ExportError, match="has a part in TorchScript, part, which") as caught:
        observer.export()
    assert caught.value.slug == "packed-weights"
