"""Inputs that a graph gives back as they are: their sizes of 0 and 1 are tried all at once."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from onlooker import ExportError, InputObserver, Program, RejectedCallError


class GivesBack(nn.Module):
    """States that are not read, as those of an encoder in a step of a decoder."""

    def forward(self, x: torch.Tensor, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.softmax(-1), states


class Decides(nn.Module):
    """A size of the states decides, with which no operator computes."""

    def forward(self, x: torch.Tensor, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.softmax(-1) if states.shape[1] != 1 else x.exp(), states


def exported(model: nn.Module) -> Program:
    observer = InputObserver()
    with observer(model):
        for sizes in ((2, 3, 4, 5), (3, 5, 6, 7)):
            model(torch.randn(sizes[0], 8), torch.randn(*sizes[1:]))
    return observer.export()


def test_unread_sizes_are_tried_together() -> None:
    program = exported(GivesBack())
    for sizes in ((1, 1, 1), (0, 1, 0), (5, 0, 1)):
        x, states = torch.randn(3, 8), torch.randn(*sizes)
        torch.testing.assert_close(program(x, states), (x.softmax(-1), states))
    asked = [row for row in program.experiments.rows if "sizes of 0 and 1" in row.claim]
    # 1 and 0 of both axes of x, of all those of the states, and all together
    assert len(asked) == 7, asked


@pytest.mark.parametrize("rows", [0, 1, 2, 5])
@pytest.mark.one_in(2)
def test_a_size_that_decides_is_not_unread(rows: int) -> None:
    model = Decides()
    program = exported(model)
    x, states = torch.randn(3, 8), torch.randn(4, rows, 2)
    try:
        got = program(x, states)
    except RejectedCallError:
        assert rows < 2
    else:
        torch.testing.assert_close(got, model(x, states))


class LeavesOut(nn.Module):
    def forward(self, x: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        return x.softmax(-1)


def test_numbers_of_8_bits_that_nothing_reads_are_no_obstacle() -> None:
    observer, model = InputObserver(), LeavesOut()
    with observer(model):
        for size in (2, 3):
            model(torch.randn(size, 4), torch.randn(size).to(torch.float8_e4m3fn))
    x = torch.randn(5, 4)
    torch.testing.assert_close(observer.export()(x, torch.ones(5).to(torch.float8_e4m3fn)), x.softmax(-1))


class CountsBytes(nn.Module):
    """torch writes this number as a product of three, which no operator of Python takes."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        y = x * 2
        return y, y.untyped_storage().nbytes()


def test_a_graph_that_cannot_be_run_is_refused() -> None:
    observer, model = InputObserver(), CountsBytes()
    with observer(model):
        model(torch.randn(2, 4))
        model(torch.randn(3, 4))
    with pytest.raises(ExportError, match="mul expected 2 arguments"):
        observer.export()
