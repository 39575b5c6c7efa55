"""Which other sides of conditions are traced."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from onlooker import InputObserver, Program
from onlooker.patches.swap import swapped
from onlooker.trace import torch_export


class Halving(nn.Module):
    """Convolutions that halve the sides; how each is padded hangs on what is odd."""

    def __init__(self, levels: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Conv2d(1, 1, 3, stride=2) for _ in range(levels))

    def pads(self, height: int, width: int) -> tuple[int, int, int, int]:
        raise NotImplementedError

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(nn.functional.pad(x, self.pads(x.shape[2], x.shape[3])))
        return x.mean((2, 3))


class OnOtherSides(Halving):
    """An even side is padded behind, an odd one on both ends: no graph does both."""

    def pads(self, height: int, width: int) -> tuple[int, int, int, int]:
        left = 0 if width % 2 == 0 else 1
        above = 0 if height % 2 == 0 else 1
        return left, 1, above, 1


class OnOneSide(Halving):
    """An odd side is padded by one more at its end: a graph with that pad does both."""

    def pads(self, height: int, width: int) -> tuple[int, int, int, int]:
        if height % 2 == 1 or width % 2 == 1:
            return 1, 1 + width % 2, 1, 1 + height % 2
        return 1, 1, 1, 1


def traced(model: nn.Module, *sizes: tuple[int, int]) -> tuple[Program, int]:
    found = 0
    export = torch_export._export

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal found
        found += 1
        return export(*args, **kwargs)

    observer = InputObserver()
    with torch.no_grad(), observer(model):
        for height, width in sizes:
            model(torch.randn(2, 1, height, width))
    with swapped(torch_export, "_export", counted):
        return observer.export(), found


def test_sides_of_many_remainders_are_refused_after_a_few() -> None:
    model = OnOtherSides(3).eval()
    program, traces = traced(model, (64, 64))
    assert traces <= 12  # 14 without an end
    assert len(program.graphs) <= 12
    [note, *_] = [note for graph in program.graphs for note in graph.notes if "remainders" in note]
    assert "% 2" in note
    assert "test_search.py" in note
    x = torch.randn(3, 1, 96, 128)
    torch.testing.assert_close(program(x), model(x))


def test_all_sides_of_few_remainders_have_graphs() -> None:
    model = OnOtherSides(1).eval()
    program, _ = traced(model, (64, 64))
    for height, width in ((32, 48), (33, 48), (48, 35), (51, 35)):
        x = torch.randn(3, 1, height, width)
        torch.testing.assert_close(program(x), model(x))


def test_sides_that_one_graph_serves_are_all_looked_at() -> None:
    model = OnOneSide(3).eval()
    program, _ = traced(model, (64, 64))
    for height, width in ((96, 48), (63, 48), (51, 61)):
        x = torch.randn(3, 1, height, width)
        torch.testing.assert_close(program(x), model(x))
