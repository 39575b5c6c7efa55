"""Encoders of torch give zeros at padded positions in eager mode, and so do their programs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from onlooker import InputObserver
from onlooker.repairs.encoder_padding import padding_is_zero

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")


def encoder(norm: bool = False) -> torch.nn.TransformerEncoder:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 2, norm=torch.nn.LayerNorm(8) if norm else None).eval()


def padding(rows: int, length: int, side: str) -> torch.Tensor:
    """The first row is whole, the others have one padded position more each."""
    mask = torch.arange(length) >= length - torch.arange(rows)[:, None]
    return mask.flip(1) if side == "left" else mask


class Both(torch.nn.Module):
    """A decoder that sees padded positions of the encoder."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = torch.nn.Transformer(8, 2, 1, 1, 16, batch_first=True)

    def forward(self, x: torch.Tensor, src_key_padding_mask: torch.Tensor) -> Any:
        return self.model(x, x.flip(1), src_key_padding_mask=src_key_padding_mask)


MODELS = {"encoder": encoder, "with a norm": lambda: encoder(norm=True), "with a decoder": lambda: Both().eval()}


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "encoder" else ()) for name in MODELS]
)
@pytest.mark.one_in(4)
def test_results_at_padded_positions_are_those_of_eager(name: str, side: str) -> None:
    model, observer = MODELS[name](), InputObserver()
    with observer(model), torch.no_grad():
        for rows, length in ((2, 5), (3, 7)):
            model(torch.randn(rows, length, 8), src_key_padding_mask=padding(rows, length, side))
    program = observer.export()
    for other in ("right", "left"):
        x, mask = torch.randn(4, 9, 8), padding(4, 9, other)
        with torch.no_grad():
            expected = model(x, src_key_padding_mask=mask)
        torch.testing.assert_close(program(x, src_key_padding_mask=mask), expected, atol=1e-5, rtol=1e-5)
    assert program.verify().verified


def test_with_gradients_padded_positions_are_computed() -> None:
    model, x, mask = encoder(), torch.randn(3, 6, 8), padding(3, 6, "right")
    with padding_is_zero(model):
        computed = model(x, src_key_padding_mask=mask)
        with torch.no_grad():
            zeros = model(x, src_key_padding_mask=mask)
    assert torch.equal(zeros[mask], torch.zeros_like(zeros[mask]))
    assert not torch.equal(computed[mask], zeros[mask])


def test_a_trace_of_torch_computes_padded_positions() -> None:
    """The reason of the patch, which may go when this fails."""
    model, x, mask = encoder(), torch.randn(3, 6, 8), padding(3, 6, "right")
    with torch.no_grad():
        program = torch.export.export(model, (x,), {"src_key_padding_mask": mask}, strict=False)
        traced = program.module()(x, src_key_padding_mask=mask)
        assert not torch.allclose(traced, model(x, src_key_padding_mask=mask), atol=1e-3)


@pytest.mark.parametrize("side", ["right", pytest.param("left", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_an_encoder_without_nested_tensors_takes_any_padding(side: str) -> None:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True)
    model = torch.nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()
    observer = InputObserver()
    with observer(model), torch.no_grad():
        for rows, length in ((2, 5), (3, 7)):
            model(torch.randn(rows, length, 8), src_key_padding_mask=padding(rows, length, side))
    program = observer.export()
    assert program.verify().verified
    x, mask = torch.randn(4, 9, 8), padding(4, 9, side)
    with torch.no_grad():
        torch.testing.assert_close(program(x, src_key_padding_mask=mask), model(x, src_key_padding_mask=mask))
