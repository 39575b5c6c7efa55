"""Calls that raise in a ``try`` block, and what a model asks of the class of its arguments."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from onlooker import InputObserver
from onlooker.repairs.caught_calls import raised_calls_are_forgotten


class TriesLengths(nn.Module):
    """Calls each layer with lengths, and without them where it takes none."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            try:
                x = layer(x, lengths=None)
            except TypeError:
                x = layer(x)
        return x


class TriesInner(TriesLengths):
    """The layer that raises is within another one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            return self.layers[2](self.layers(x))
        except NotImplementedError:
            return self.layers[0](x)


class AsksForClass(TriesLengths):
    """Makes floats of what is a tensor of ints, and of nothing else."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if type(x) is torch.Tensor and x.dtype == torch.long:
            x = x.float()
        assert type(self.layers[0].weight) is nn.Parameter
        return self.layers[0](x)


def test_torch_ends_a_trace_at_a_call_that_raises() -> None:
    with pytest.raises(AssertionError, match="Unexpected key"):
        torch.export.export(TriesLengths(), (torch.randn(2, 4),), strict=False)


@pytest.mark.parametrize("kind", [TriesLengths, TriesInner, AsksForClass])
def test_a_call_that_raises_is_as_outside_of_a_trace(kind: type[TriesLengths]) -> None:
    torch.manual_seed(0)
    model, observer = kind().eval(), InputObserver()

    def rows(count: int) -> torch.Tensor:
        return torch.randint(0, 9, (count, 4)) if kind is AsksForClass else torch.randn(count, 4)

    with torch.no_grad(), observer(model):
        model(rows(2))
        model(rows(3))
    program = observer.export()
    assert program.verify().verified
    x = rows(7)
    with torch.no_grad():
        torch.testing.assert_close(program(x), model(x))


def test_what_calls_of_modules_leave_is_put_back() -> None:
    call = torch.fx.Tracer.call_module
    with raised_calls_are_forgotten():
        assert torch.fx.Tracer.call_module is not call
    assert torch.fx.Tracer.call_module is call
