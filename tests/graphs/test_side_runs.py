"""Runs of a model in the ways of a call that a graph of a decoder stands for."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from onlooker import InputObserver, Program

ROWS = 64


class Blocks(nn.Module):
    """Sums over blocks of 64 tokens, in a trace by a loop over them, with a cache of what came before."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(ROWS) / 8)

    def forward(
        self, x: torch.Tensor, past: torch.Tensor | None = None, mask: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        whole = x if past is None else torch.cat([past, x], 1)
        shown = whole if mask is None else self.shown(whole * mask)
        blocks = F.pad(shown, (0, -whole.shape[1] % ROWS)).unflatten(1, (-1, ROWS)) * self.weight
        if torch.compiler.is_exporting():
            for row in range(1, ROWS):
                blocks[:, :, row] = blocks[:, :, row - 1] + blocks[:, :, row]
        else:
            blocks = blocks.cumsum(2)
        return blocks.flatten(1)[:, : whole.shape[1]], whole

    def shown(self, whole: torch.Tensor) -> torch.Tensor:
        return whole


class Ending(Blocks):
    """With a mask, a block ends after 40 tokens: what follows is 0."""

    def shown(self, whole: torch.Tensor) -> torch.Tensor:
        blocks = F.pad(whole, (0, -whole.shape[1] % ROWS)).unflatten(1, (-1, ROWS))
        return F.pad(blocks[:, :, :40], (0, ROWS - 40)).flatten(1)[:, : whole.shape[1]]


def program_of(model: nn.Module, budget: int = 512) -> Program:
    observer = InputObserver()
    with observer(model.eval()), torch.no_grad():
        for batch, past, length in ((2, 0, 5), (3, 4, 6), (2, 9, 3)):
            cache = torch.randn(batch, past) if past else None
            model(torch.randn(batch, length), past=cache, mask=torch.ones(batch, past + length))
    return observer.export(budget=budget)


def serves_a_call_without_a_mask(program: Program, model: nn.Module) -> bool:
    assert program.verify().verified
    x, past = torch.randn(2, 50), torch.randn(2, 30)
    with torch.no_grad():
        return all(torch.allclose(program(*call)[0], model(*call)[0], atol=1e-5) for call in ((x,), (x[:, :20], past)))


@pytest.mark.slow
def test_the_rows_of_a_block_are_tried_together() -> None:
    model = Blocks()
    assert serves_a_call_without_a_mask(program_of(model, budget=200), model)


@pytest.mark.slow
def test_a_place_that_one_way_alone_has_is_found_in_a_full_block() -> None:
    model = Ending()
    assert serves_a_call_without_a_mask(program_of(model), model)


WINDOW = 4096


class Windowed(nn.Module):
    """Sees tokens of a window where it has a mask, and all tokens before where it has none: the same up to
    the length of the window. ``most`` tokens are taken.
    """

    def __init__(self, most: int | None) -> None:
        super().__init__()
        self.most = most

    def forward(
        self, x: torch.Tensor, past: torch.Tensor | None = None, mask: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        whole = x if past is None else torch.cat([past, x], 1)
        length = whole.shape[1]
        if self.most is not None and length > self.most:
            raise ValueError("too many tokens")
        query = torch.arange(length - x.shape[1], length)[:, None]
        key = torch.arange(length)
        seen = key <= query
        if mask is not None:
            seen = seen & (key > query - WINDOW) & (mask[:, None] > 0)
        return (whole[:, None] * seen).sum(-1), whole


@pytest.mark.parametrize(
    ("most", "is_one"), [(4000, True), (5000, False), pytest.param(None, False, marks=pytest.mark.slow)]
)
@pytest.mark.one_in(2)
def test_a_window_that_no_call_is_as_long_as_is_no_difference(most: int | None, is_one: bool) -> None:
    model = Windowed(most)
    program = program_of(model)
    assert any("without_mask" in graph.name for graph in program.graphs) is not is_one
    for call in ((torch.randn(1, 20),), (torch.randn(1, 3900),), (torch.randn(1, 4900),)):
        if most is None or call[0].shape[1] < most:
            torch.testing.assert_close(program(*call)[0], model(*call)[0])
