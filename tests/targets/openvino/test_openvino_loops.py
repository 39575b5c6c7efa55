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
