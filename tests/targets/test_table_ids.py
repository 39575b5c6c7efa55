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


class Shifts(Table):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.table(ids + 2 - 1)


class Writes(Table):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.zeros(10, 3).index_add(0, ids.reshape(-1), self.table.weight[:1].expand(ids.numel(), 3))


class Counts(Table):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.zeros(1, 10).scatter_add(1, ids.reshape(1, -1), torch.ones(1, ids.numel()))


class OneHot(Table):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.one_hot(ids, 10).float() @ self.table.weight


class Masks(Table):
    """-100 is no row, and is not looked up."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.table(ids.clamp(min=0)) * (ids >= 0)[..., None]


class OneHotOfASize(Table):
    """Has more classes for longer rows of ids."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.one_hot(ids, 8 + ids.shape[1]).sum(1)


def exported(model: torch.nn.Module) -> Program:
    observer = InputObserver()
    with observer(model), torch.no_grad():
        for length in (2, 3):
            model(torch.randint(0, 9, (2, length)))
    return observer.export().to("onnx")


KINDS = [(Embeds, 0), (Selects, 0), (Indexes, -10), (Shifts, -1), (Writes, 0), (Counts, 0), (OneHot, 0)]


@pytest.mark.parametrize(("kind", "least"), KINDS, ids=[kind.__name__ for kind, _ in KINDS])
def test_ids_that_are_no_rows_are_refused(kind: type[Table], least: int) -> None:
    model = kind()
    program, greatest = exported(model), 8 if kind is Shifts else 9
    assert program.verify().verified
    for taken in (least, greatest):
        ids = torch.tensor([[taken, 3]])
        torch.testing.assert_close(program(ids), model(ids).detach())
    for other in (least - 1, greatest + 1):
        with pytest.raises(RejectedCallError, match=rf"ids of {least} to {greatest} in ids.*which has {other}"):
            program(torch.tensor([[3, other]]))


def test_classes_as_many_as_ids_are_no_bound() -> None:
    model = OneHotOfASize()
    ids = torch.tensor([[9, 3, 10]])
    torch.testing.assert_close(exported(model)(ids), model(ids))


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
