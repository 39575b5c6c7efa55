"""Sizes that a trace makes numbers: sizes again where ``int`` did it, else constants as the calls had them."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from onlooker import InputObserver, RejectedCallError
from onlooker.core.path import Name
from onlooker.core.path import Path as LeafPath
from onlooker.core.plan import Symbol
from onlooker.core.spec import Axis
from onlooker.infer.sizes import choose_sizes
from plans import plan_with


class Patches(nn.Module):
    """Patches of 4 pixels, as many as fill a square, whose side ``root`` finds."""

    def __init__(self, root: Callable[[int], int]) -> None:
        super().__init__()
        self.root = root
        self.conv = nn.Conv2d(1, 2, 4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.conv(x).flatten(2)
        side = self.root(tokens.shape[2])
        return tokens[..., : side * side].reshape(x.shape[0], 2, side, side).cumsum(2)


class Resized(nn.Module):
    """A grid that is resized to the patches of the image, with their number from a function of another file."""

    def __init__(self, number: Callable[[int], int]) -> None:
        super().__init__()
        self.number = number
        self.grid = nn.Parameter(torch.randn(1, 2, 3, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size = (self.number(x.shape[2] // 4), self.number(x.shape[3] // 4))
        grid = nn.functional.interpolate(self.grid, size=size, mode="bicubic", antialias=True)
        return nn.functional.avg_pool2d(x, 4) + grid.mean(1, keepdim=True)


def exported(model: nn.Module, *shapes: tuple[int, ...]):
    observer = InputObserver()
    with observer(model.eval()), torch.no_grad():
        for shape in shapes:
            model(torch.randn(shape))
    return observer.export()


def same(model: nn.Module, program, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    with torch.no_grad():
        torch.testing.assert_close(program(x), model(x), atol=1e-5, rtol=1e-5)


def test_what_torch_makes_a_number_is_that_of_the_call() -> None:
    model = Patches(math.isqrt)
    program = exported(model, (1, 1, 32, 32))
    for batch in (1, 2, 5):
        same(model, program, (batch, 1, 32, 32))
    assert program.verify().verified
    with pytest.raises(
        RejectedCallError, match=r"needs x.shape\[2\] // 4.*because of .*self.root\(tokens.shape\[2\]\)"
    ):
        program(torch.randn(1, 1, 128, 256))


def test_an_int_in_a_file_that_the_model_takes_functions_from_stays_a_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "whole_numbers_of_sizes.py").write_text("def whole(x):\n    return int(x)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(globals(), "whole", importlib.import_module("whole_numbers_of_sizes").whole)
    model = Resized(globals()["whole"])
    program = exported(model, (1, 1, 16, 16))
    assert len(program.graphs) == 1
    for shape in ((2, 1, 16, 16), (1, 1, 32, 16), (3, 1, 24, 40)):
        same(model, program, shape)


def test_sizes_of_an_export_are_twice_the_least_size_where_they_can_be() -> None:
    symbols = [Symbol("height", (32,), low=32), Symbol("width", (32,), low=32)]
    assert all(size >= 64 for size in choose_sizes(plan_with(symbols)).values())
    capped = [Symbol("height", (32,), low=32, high=48)]
    assert 32 < choose_sizes(plan_with(capped))["height"] <= 48


class Steps(torch.nn.Module):
    """A loop over steps that differ, each of which needs the one before."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = torch.zeros_like(x[:, 0])
        found = []
        for step in range(x.shape[1]):
            state = torch.tanh(x[:, step] + state) * (2 if step % 2 else 1)
            found.append(state)
        return torch.stack(found, 1)


def test_a_loop_over_steps_has_graphs_of_the_watched_lengths_and_of_the_example_alone() -> None:
    model, observer = Steps(), InputObserver()
    with observer(model):
        for batch, length in ((2, 10), (2, 1), (3, 1)):
            model(torch.randn(batch, length, 4))
    program = observer.export()
    lengths = {str(graph.exported_sizes[Axis(LeafPath((Name("x"),)), 1)]) for graph in program.graphs}
    assert lengths >= {"10", "1"}
    assert len(program.graphs) <= 3
    for length in (10, 1):
        x = torch.randn(4, length, 4)
        torch.testing.assert_close(program(x), model(x))
    with pytest.raises(RejectedCallError, match="for step in range"):
        program(torch.randn(4, 8, 4))
