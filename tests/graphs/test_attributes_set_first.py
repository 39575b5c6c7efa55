"""Attributes that each call sets: a later call is as the first one where none reads them before."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from onlooker import InputObserver, Program


class Packed(nn.Module):
    """A convolution whose weight is made anew in each call, and a packed LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 8)
        convolution = nn.Conv1d(8, 8, 3, padding=1)
        self.conv = nn.utils.weight_norm(convolution)  # type: ignore[no-untyped-call]
        self.lstm = nn.LSTM(8, 4, batch_first=True, bidirectional=True)

    def forward(self, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        x = self.conv(self.embed(ids).mT).mT
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        out: torch.Tensor = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], True)[0]
        return out


class Setting(nn.Module):
    """A call leaves behind how many rows it had."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.rows = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.linear(x)
        return self.scaled(y, float(x.shape[0]))

    def scaled(self, y: torch.Tensor, rows: float) -> torch.Tensor:
        self.rows = rows
        return y * self.rows


READERS: dict[str, Callable[[Any], float]] = {
    "attribute": lambda model: model.rows,
    "getter": operator.attrgetter("rows"),
    "namespace": lambda model: vars(model)["rows"],
    "dict": lambda model: model.__dict__.get("rows"),
    "copy": lambda model: copy.copy(model).rows,
}


class Reading(Setting):
    """One after a call of many rows gives something else."""

    def __init__(self, reader: str) -> None:
        super().__init__()
        self.reader = reader

    def scaled(self, y: torch.Tensor, rows: float) -> torch.Tensor:
        y = y * (1 if READERS[self.reader](self) < 6 else 3)
        self.rows = rows
        return y


class ReadingChild(nn.Module):
    """One of a submodule, for which ``torch.export`` has a proxy, since it has two names."""

    def __init__(self, reader: str) -> None:
        super().__init__()
        self.child, self.reader = Setting(), reader
        self.again = self.child

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.child.linear(x) * (1 if READERS[self.reader](self.child) < 6 else 3)
        self.child.rows = float(x.shape[0])
        return y


class Own(Setting):
    """Asks for its own class."""

    def scaled(self, y: torch.Tensor, rows: float) -> torch.Tensor:
        self.rows = rows
        return y * self.rows if type(self) is Own and self.__class__ is Own else y


def program_of(model: nn.Module, *calls: Any) -> Program:
    observer = InputObserver()
    with observer(model.eval()), torch.no_grad():
        for call in calls:
            model(*call)
    return observer.export()


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
def test_a_weight_that_each_call_makes_anew_is_no_state() -> None:
    torch.manual_seed(0)
    model = Packed()
    first = torch.randint(0, 10, (2, 5)), torch.tensor([5, 3])
    second = torch.randint(0, 10, (3, 7)), torch.tensor([7, 2, 4])
    program = program_of(model, first, second)
    assert program.verify().verified
    unseen = torch.randint(0, 10, (4, 6)), torch.tensor([6, 2, 4, 1])
    with torch.no_grad():
        torch.testing.assert_close(program(*unseen), model(*unseen))


@pytest.mark.parametrize("cls", [Setting, Own])
def test_a_number_that_each_call_sets_first_is_no_state(cls: type[Setting]) -> None:
    model = cls()
    program = program_of(model, (torch.randn(2, 4),), (torch.randn(5, 4),))
    assert program.verify().verified
    assert type(model) is model.__class__ is cls
    x = torch.randn(7, 4)
    torch.testing.assert_close(program(x), model(x))


@pytest.mark.parametrize("cls", [Reading, ReadingChild])
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.one_in(2)
def test_a_number_that_is_read_before_it_is_set_is_state(reader: str, cls: Any) -> None:
    model = cls(reader)
    program = program_of(model, (torch.randn(2, 4),), (torch.randn(5, 4),))
    assert not program.verify().verified


class Replacing(Setting):
    """Gives itself another namespace."""

    def scaled(self, y: torch.Tensor, rows: float) -> torch.Tensor:
        y = y * (1 if self.rows < 6 else 3)
        self.__dict__ = {**self.__dict__, "rows": rows}
        return y


def test_an_object_that_gets_another_namespace_keeps_state() -> None:
    program = program_of(Replacing(), (torch.randn(2, 4),), (torch.randn(5, 4),))
    assert not program.verify().verified


def test_a_class_that_keeps_a_register_is_told_of_no_other_class() -> None:
    known: list[type] = []

    class Registered(Setting):
        def __init_subclass__(cls) -> None:
            known.append(cls)

    class Model(Registered):
        pass

    program_of(Model(), (torch.randn(2, 4),), (torch.randn(5, 4),))
    assert known == [Model]
