"""Two ways of a call that differ from a size on alone are two: arithmetic on sizes has pieces."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import sympy
import torch
from torch import nn

from onlooker import InputObserver, Program, RejectedCallError
from onlooker.graphs.thresholds import numbers_of_pieces
from onlooker.torch_internals.sizes import FloorDiv, Max, Mod, ToFloat


def rows(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 4)


def exported(model: nn.Module, *calls: tuple[object, ...]) -> Program:
    observer = InputObserver()
    with torch.no_grad(), observer(model.eval()):
        for call in calls:
            model(*call)
    return observer.export()


def is_wrong(program: Program, model: nn.Module, *call: object) -> bool:
    """True where the program takes a call, and gives something else than the model."""
    with torch.no_grad():
        expected = model(*call)
        try:
            got = program(*call)
        except RejectedCallError:
            return False
    expected, got = (one if isinstance(one, tuple) else (one,) for one in (expected, got))
    return not all(
        one.shape == other.shape and torch.allclose(one, other, atol=1e-5)
        for one, other in zip(expected, got, strict=True)
    )


class Flagged(Layer):
    """What a flag does begins at a size."""

    def __init__(self, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.change = change

    def forward(self, x: torch.Tensor, changed: bool = False) -> torch.Tensor:
        y = self.layer(x)
        return self.change(y) if changed else y


CHANGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a quotient": lambda y: y + y.shape[1] // 64,
    "the ceiling of a quotient": lambda y: y / math.ceil(y.shape[1] / 64),
    "bits": lambda y: y + (y.shape[1] >> 6),
    "a greatest number": lambda y: y + max(0, y.shape[1] - 40),
    "places": lambda y: y - torch.relu(torch.arange(y.shape[1]) * 0.01 - 1)[:, None],
    "rounded places": lambda y: (
        y
        + torch.arange(y.shape[1], dtype=torch.bfloat16).float()[:, None] * 0
        + (torch.arange(y.shape[1]).bfloat16().float() - torch.arange(y.shape[1]))[:, None]
    ),
    "an exponent": lambda y: torch.where(torch.isinf(torch.arange(y.shape[1]).float().exp())[:, None], 0, y),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", CHANGES)
def test_a_flag_that_acts_from_a_size_on_is_no_default(name: str) -> None:
    model = Flagged(CHANGES[name])
    program = exported(model, (rows(2, 3, 4), True), (rows(1, 7, 4),))
    x = rows(2, 299, 4)
    assert not is_wrong(program, model, x)
    assert not is_wrong(program, model, x, True)


VALUES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "an exponent": lambda y: (1 + (1000 * y).exp()).log(),
    "a variance": lambda y: y / (y.var(1, correction=0) + 1e-8).sqrt()[:, None],
}


class OtherForm(nn.Module):
    """The formula of a flag, and one that is as good for usual values."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: torch.Tensor, plain: bool = False) -> torch.Tensor:
        if plain:
            return VALUES[self.name](x)
        if self.name == "an exponent":
            return nn.functional.softplus(1000 * x)
        return x / (x.var(1, correction=0) + 1e-6).sqrt()[:, None]


@pytest.mark.parametrize("name", VALUES)
def test_formulas_that_differ_for_extreme_values_are_two(name: str) -> None:
    model = OtherForm(name)
    program = exported(model, (rows(2, 3, 4) * 1e-3, True), (rows(1, 7, 4) * 1e-3,))
    x = torch.ones(2, 5, 4)
    assert not is_wrong(program, model, x)
    assert not is_wrong(program, model, x, True)


class ByPast(Layer):
    """A past, where there is one, is joined, and what that gives is changed."""

    def joined(self, rows: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def forward(self, x: torch.Tensor, past: torch.Tensor | None = None) -> torch.Tensor:
        rows = self.layer(x)
        if past is not None:
            rows = self.joined(torch.cat([past, rows], 1))
        length = rows.shape[1]
        places = torch.arange(length)
        hidden = places[None] > places[length - x.shape[1] :, None]
        return torch.softmax((x @ rows.mT).masked_fill(hidden, -1e9), -1) @ rows


class AddsQuotient(ByPast):
    def joined(self, rows: torch.Tensor) -> torch.Tensor:
        return rows + rows.shape[1] // 64


class CutsRows(ByPast):
    def joined(self, rows: torch.Tensor) -> torch.Tensor:
        return rows[:, -12:]


class CutsByMax(ByPast):
    def joined(self, rows: torch.Tensor) -> torch.Tensor:
        return rows[:, max(0, rows.shape[1] - 12) :]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("cls", [AddsQuotient, CutsRows, CutsByMax])
def test_a_past_that_acts_from_a_size_on_is_no_empty_one(cls: type[ByPast]) -> None:
    model = cls()
    calls = ((2, 4, None), (2, 1, 4), (2, 1, 5), (1, 6, None))
    watched = [(rows(b, n, 4), *(() if p is None else (rows(b, p, 4),))) for b, n, p in calls]
    program = exported(model, *watched)
    for length in (13, 20, 64, 100):
        assert not is_wrong(program, model, rows(2, length, 4))


class RemembersTheFirst(Layer):
    """The mean of the first call acts from 64 rows on."""

    def __init__(self) -> None:
        super().__init__()
        self.first: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.first is None:
            self.first = x.mean(0)
        return self.layer(x) + self.first * (x.shape[0] // 64)


def test_state_that_acts_from_a_size_on_is_none_to_leave_out() -> None:
    program = exported(RemembersTheFirst(), (rows(2, 4),), (rows(3, 4),))
    assert not program.verify().verified


def test_the_pieces_of_expressions() -> None:
    n = sympy.Symbol("n", positive=True, integer=True)
    expressions = (3 * n + 70, FloorDiv(n, 64), Max(0, n - 12), Mod(n + 3, 8) + 5, ToFloat(n) * 0.5)
    assert [set(numbers_of_pieces(one)) for one in expressions] == [set(), {64}, {12}, {3, 8}, set()]
