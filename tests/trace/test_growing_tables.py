"""Tables of positions that grow with the longest call: watched calls keep their graphs, whichever of them it is."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from onlooker import ExportError, InputObserver, Program


class Positions(nn.Module):
    """Makes a longer table for a longer call, and counts in an int how long it is."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale
        self.grow(8)

    def grow(self, length: int) -> None:
        scale = 1.0 if length == 8 else self.scale
        self.length = length
        self.register_buffer("table", (torch.arange(length) * scale).cos(), persistent=False)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        if x.shape[1] > self.length:
            self.grow(x.shape[1])
        found = {"out": (x + self.table[: x.shape[1]]).cumsum(1)}
        if labels is not None:
            found["loss"] = nn.functional.mse_loss(found["out"], labels)
        return found


class Decoder(nn.Module):
    """Takes the positions after its cache, and gives the cache back."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = Positions()

    def forward(
        self, x: torch.Tensor, cache: list[torch.Tensor] | None = None
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        past = 0 if cache is None else cache[0].shape[1]
        length = past + x.shape[1]
        if length > self.positions.length:
            self.positions.grow(length)
        x = x + self.positions.table[past:length]
        whole = x if cache is None else torch.cat([cache[0], x], 1)
        return torch.softmax(x[:, :, None] * whole[:, None], -1) @ whole[..., None], [whole]


def of_shape(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def exported_after_a_long_call(model: nn.Module) -> Program:
    """The longest call is neither the first nor the last one."""
    observer = InputObserver()
    with torch.no_grad(), observer(model):
        model(of_shape(2, 5))
        model(of_shape(2, 20))
        model(of_shape(2, 7), of_shape(2, 7))
    return observer.export()


def test_a_call_in_between_that_makes_a_longer_table_is_served() -> None:
    program = exported_after_a_long_call(Positions().eval())
    assert program.verify().verified
    for rows, length in ((2, 20), (3, 6), (1, 12), (4, 30), (2, 7)):
        x = of_shape(rows, length)
        torch.testing.assert_close(program(x), Positions()(x))
    x, labels = of_shape(3, 6), of_shape(3, 6)
    torch.testing.assert_close(program(x, labels), Positions()(x, labels))


def test_a_longer_table_with_other_rows_is_state() -> None:
    with pytest.raises(ExportError) as caught:
        exported_after_a_long_call(Positions(1.5).eval())
    assert caught.value.slug == "model-keeps-state"


@pytest.mark.slow
def test_a_trace_that_makes_a_longer_table_leaves_other_traces_as_they_are() -> None:
    observer, model = InputObserver(), Decoder().eval()
    with torch.no_grad(), observer(model):
        _, cache = model(of_shape(2, 5))
        _, cache = model(of_shape(2, 1), cache)
        model(of_shape(2, 1), cache)
    program = observer.export()
    assert program.verify().verified
    for past, length in ((0, 7), (3, 1), (7, 1)):
        x, cache = of_shape(3, length), [of_shape(3, past)] if past else None
        torch.testing.assert_close(program(x, cache), Decoder()(x, cache))
