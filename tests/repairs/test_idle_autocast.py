"""Regions of autocast in a forward: those that turn it off where it is off, and others."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from onlooker import InputObserver, Program
from onlooker.repairs.idle_autocast import idle_regions_left_out


class Positions(nn.Module):
    """Numbers of the places, in full precision."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frequencies", torch.linspace(0.1, 1, 4))

    @torch.autocast("cuda", enabled=False)
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.arange(x.shape[1], dtype=torch.float32)[:, None] * self.frequencies


class Off(nn.Module):
    """Reads a part of its input for its length alone, in a region without autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.positions = nn.Linear(4, 4), Positions()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.dropout(self.layer(x), 0.1, self.training)
        return x + self.positions(x[:, 1:]).sum()


class On(Off):
    """The same within a region with autocast, in which one without it stands."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            x = functional.dropout(self.layer(x), 0.1, self.training)
            with torch.autocast("cpu", enabled=False):
                places = self.positions(x[:, 1:]).sum()
                x = x + self.layer(x.float())
        return x.float() + places


def program_of(model: nn.Module) -> Program:
    observer = InputObserver()
    with torch.no_grad(), observer(model):
        for shape in ((2, 8, 4), (1, 12, 4)):
            model(torch.randn(*shape))
    return observer.export()


def test_torch_makes_a_graph_of_a_region_without_autocast() -> None:
    program = torch.export.export(Positions(), (torch.randn(2, 8, 4),), strict=False)
    assert any("autocast" in str(node.target) for node in program.graph.nodes)


@pytest.mark.parametrize("kind", [Off, On])
def test_a_region_of_autocast_is_served_for_all_sizes(kind: type[Off]) -> None:
    torch.manual_seed(0)
    model = kind().eval()
    program = program_of(model)
    assert program.verify().verified
    with torch.no_grad():
        for shape in ((1, 5, 4), (7, 3, 4), (3, 40, 4)):
            x = torch.randn(*shape)
            torch.testing.assert_close(program(x), model(x))
    nodes = program.graphs[0].artifact.graph_module.graph.nodes
    assert any("autocast" in str(node.target) for node in nodes) is (kind is On)
    assert len(program.graphs) == 1 or kind is On


def test_a_program_runs_without_autocast_in_a_region_that_has_it() -> None:
    model = Off().eval()
    program, x = program_of(model), torch.randn(2, 8, 4)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert model(x).dtype == torch.bfloat16
        inside = program(x)
    assert torch.equal(inside, program(x))


def test_what_raises_in_a_region_leaves_autocast_as_it_was() -> None:
    with idle_regions_left_out():
        with pytest.raises(ValueError, match="inside"), torch.autocast("cpu", enabled=False):
            raise ValueError("inside")
        with torch.autocast("cpu", torch.bfloat16), torch.autocast("cpu", enabled=False):
            assert not torch.is_autocast_enabled("cpu")
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.is_autocast_enabled("cpu")
    assert not torch.is_autocast_enabled("cpu")
    assert torch.autocast.__enter__ is not None
    assert "idle" not in torch.autocast.__enter__.__qualname__
