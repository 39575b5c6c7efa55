"""Ids that are no rows of a table: torch raises, and a program of another runtime refuses the call."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from onlooker import InputObserver, Program, RejectedCallError, load


class Table(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(10, 3)


class Embeds(Table):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.table(ids.reshape(-1))


class Selects(Table):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.table.weight.index_select(0, ids.reshape(-1))


class Indexes(Table):
    """-1 is the last row here, for torch too."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.table.weight[ids]


class Masks(Table):
    """-100 is no row, and is not looked up."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.table(ids.clamp(min=0)) * (ids >= 0)[..., None]


def exported(model: torch.nn.Module) -> Program:
    observer = InputObserver()
    with observer(model), torch.no_grad():
        for length in (2, 3):
            model(torch.randint(0, 10, (2, length)))
    return observer.export().to("onnx")


@pytest.mark.parametrize(
    ("kind", "least"), [(Embeds, 0), (Selects, 0), (Indexes, -10)], ids=["embedding", "index_select", "index"]
)
def test_ids_that_are_no_rows_are_refused(kind: type[Table], least: int) -> None:
    model = kind()
    program = exported(model)
    assert program.verify().verified
    for taken in (least, 9):
        ids = torch.tensor([[taken, 3]])
        torch.testing.assert_close(program(ids), model(ids).detach())
    for other in (least - 1, 10):
        with pytest.raises(RejectedCallError, match=rf"ids of {least} to 9 in ids.*which has {other}"):
            program(torch.tensor([[3, other]]))


def test_ids_that_are_not_looked_up_are_served() -> None:
    model = Masks()
    ids = torch.tensor([[-100, 3, 9]])
    torch.testing.assert_close(exported(model)(ids), model(ids).detach())


def test_a_saved_program_refuses_them_too(tmp_path: Path) -> None:
    exported(Embeds()).save(str(tmp_path / "program"))
    loaded = load(str(tmp_path / "program"))
    with pytest.raises(RejectedCallError, match="ids of 0 to 9 in ids"):
        loaded(torch.tensor([[3, -1]]))


def test_the_report_says_which_ids_are_refused() -> None:
    assert "calls with ids outside 0 to 9 in ids" in " ".join(str(exported(Embeds()).report).split())
