"""Loops over steps in OpenVINO: one model for any number of steps."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import onlooker
from onlooker import InputObserver, Program

pytest.importorskip("openvino")


class Loops(nn.Module):
    """Ids forwards through a cell of two states; its results backwards, with a count; rows that a mask leaves out."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.cell = nn.Embedding(9, 4), nn.LSTMCell(4, 3)

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        h = c = torch.zeros(ids.shape[0], 3)
        rows, back = [], []
        for t in range(ids.shape[1]):
            h, c = self.cell(self.table(ids[:, t]), (h, c))
            rows.append(h)
        states, last = torch.stack(rows, 1), torch.zeros(ids.shape[0], 3)
        count = torch.zeros(ids.shape[0], dtype=torch.int64)
        for t in reversed(range(ids.shape[1])):
            last = torch.where(mask[:, t, None], last * 0.5 + states[:, t], last)
            count = count + mask[:, t]
            back.append(last)
        return states, torch.stack(back, 1), last, last, count


def call(batch: int, steps: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(batch + steps)
    return torch.randint(0, 9, (batch, steps)), torch.rand(batch, steps) > 0.4


@pytest.fixture(scope="module")
def converted() -> tuple[Loops, Program]:
    model, observer = Loops().eval(), InputObserver()
    with observer(model), torch.no_grad():
        model(*call(2, 3))
        model(*call(3, 5))
    return model, observer.export(to="openvino")


def test_any_number_of_steps_is_served(converted: tuple[Loops, Program], tmp_path: Path) -> None:
    model, program = converted
    assert program.verify().verified, program.report
    assert len(program.graphs) == 1
    program.save(tmp_path / "saved")
    for one in (program, onlooker.load(tmp_path / "saved")):
        for batch, steps in ((4, 9), (1, 40), (5, 1), (1, 1)):
            for got, wanted in zip(one(*call(batch, steps)), model(*call(batch, steps)), strict=True):
                torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)


class HandedOn(nn.Module):
    """States that a step hands on as they are: its row, and the states of the step before."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        row_before = torch.zeros_like(x[:, 0])
        hidden = torch.zeros_like(mask[:, 0])
        a = b = c = row_before
        rows = []
        for row, own in zip(x.unbind(1), mask.unbind(1), strict=True):
            new = torch.tanh(row + 0.3 * a - 0.2 * b + 0.1 * c - row_before) * (~hidden)[:, None]
            a, b, c, row_before, hidden = b, c, new, row, own
            rows.append(new)
        return torch.stack(rows, 1), b


@pytest.mark.slow
def test_states_that_steps_hand_on_are_those_of_the_step() -> None:
    torch.manual_seed(0)
    model, observer = HandedOn(), InputObserver()
    with observer(model):
        for batch, length in ((2, 5), (3, 7)):
            model(torch.randn(batch, length, 4), torch.rand(batch, length) > 0.5)
    program = observer.export(to="openvino")
    assert program.verify().verified
    for batch, length in ((1, 4), (4, 11)):
        x, mask = torch.randn(batch, length, 4), torch.rand(batch, length) > 0.5
        for found, expected in zip(program(x, mask), model(x, mask), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
