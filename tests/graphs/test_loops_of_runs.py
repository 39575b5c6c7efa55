"""Loops over steps in calls that leave out a mask: rolled where the graph has them rolled, and nowhere else."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from onlooker import InputObserver, Program, RejectedCallError


class Recurrent(nn.Module):
    """A state that goes from token to token, beside a sum over the tokens that a mask shows."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cell = nn.Linear(4, 4)
        self.counted = 0

    def forward(
        self, x: torch.Tensor, mask: torch.Tensor | None = None, past: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        whole = x if past is None else torch.cat([past, x], 1)
        shown = whole if mask is None else whole * mask[..., None]
        rows = self.rows(x, mask is None)
        return rows + shown.sum(1, keepdim=True), whole

    def rows(self, x: torch.Tensor, is_absent: bool) -> torch.Tensor:
        state, rows = torch.zeros(x.shape[0], 4), []
        for t in range(x.shape[1]):
            state = self.step(x[:, t], state, is_absent)
            rows.append(state)
        return torch.stack(rows, 1)

    def step(self, row: torch.Tensor, state: torch.Tensor, is_absent: bool) -> torch.Tensor:
        return torch.tanh(self.cell(row) + state)


class Clamps(Recurrent):
    def step(self, row: torch.Tensor, state: torch.Tensor, is_absent: bool) -> torch.Tensor:
        state = super().step(row, state, is_absent)
        return state.clamp(max=0.999999) if is_absent else state


class CountsInAnAttribute(Recurrent):
    def step(self, row: torch.Tensor, state: torch.Tensor, is_absent: bool) -> torch.Tensor:
        self.counted += is_absent
        return super().step(row, state, is_absent)

    def rows(self, x: torch.Tensor, is_absent: bool) -> torch.Tensor:
        self.counted = 0
        rows = super().rows(x, is_absent)
        return 2 * rows if self.counted > 60 else rows


class Counts(Recurrent):
    def rows(self, x: torch.Tensor, is_absent: bool) -> torch.Tensor:
        state, rows, count = torch.zeros(x.shape[0], 4), [], 0
        for t in range(x.shape[1]):
            state = self.step(x[:, t], state, is_absent)
            rows.append(state)
            count += is_absent
        return torch.stack(rows, 1) * (2 if count > 60 else 1)


class CountsItsRows(Recurrent):
    def rows(self, x: torch.Tensor, is_absent: bool) -> torch.Tensor:
        state, rows = torch.zeros(x.shape[0], 4), []
        for t in range(x.shape[1]):
            is_many = is_absent and len(rows) > 60
            state = self.step(x[:, t], state, is_absent) * (2 if is_many else 1)
            rows.append(state)
        return torch.stack(rows, 1)


class AtOneStep(Recurrent):
    def rows(self, x: torch.Tensor, is_absent: bool) -> torch.Tensor:
        state, rows = torch.zeros(x.shape[0], 4), []
        for t in range(x.shape[1]):
            state = self.step(x[:, t], state, is_absent)
            if is_absent and t == 60:
                state = 2 * state
            rows.append(state)
        return torch.stack(rows, 1)


class LongOnes(Recurrent):
    def rows(self, x: torch.Tensor, is_absent: bool) -> torch.Tensor:
        state, rows = torch.zeros(x.shape[0], 4), []
        for t in range(x.shape[1]):
            state = self.step(x[:, t], state, is_absent) * (2 if is_absent and x.shape[1] > 60 else 1)
            rows.append(state)
        return torch.stack(rows, 1)


class Forgets(Recurrent):
    def rows(self, x: torch.Tensor, is_absent: bool) -> torch.Tensor:
        kept: list[torch.Tensor] = []
        state, rows = torch.zeros(x.shape[0], 4), []
        for t in range(x.shape[1]):
            state = self.step(x[:, t], state, is_absent)
            kept = [*kept, state][-60:] if is_absent else kept
            rows.append(state)
        return torch.stack(rows, 1) + (kept[0][:, None] if kept else 0)


def program_of(model: nn.Module) -> Program:
    observer = InputObserver()
    with observer(model.eval()), torch.no_grad():
        for batch, length, before in ((2, 5, 0), (3, 7, 0), (2, 3, 5), (3, 6, 7)):
            cache = torch.randn(batch, before, 4) if before else None
            model(torch.randn(batch, length, 4), torch.ones(batch, before + length), cache)
    return observer.export()


def served(program: Program, model: nn.Module) -> list[bool]:
    """Which calls without a mask are served, all with the result of the model."""
    found = []
    for length, before in ((4, 0), (4, 9), (1, 9), (50, 3), (80, 0), (80, 3), (140, 3)):
        x, past = torch.randn(2, length, 4), torch.randn(2, before, 4) if before else None
        try:
            result = program(x, None, past)[0]
        except RejectedCallError:
            found.append(False)
            continue
        with torch.no_grad():
            torch.testing.assert_close(result, model(x, None, past)[0])
        found.append(True)
    return found


def test_a_loop_of_the_graph_decides_nothing_in_the_ways_of_a_call() -> None:
    model = Recurrent()
    program = program_of(model)
    assert program.verify().verified
    assert served(program, model) == [True, True, True, True, True, True, False]


@pytest.mark.parametrize("model", [Clamps, CountsInAnAttribute, Counts, CountsItsRows, AtOneStep, LongOnes, Forgets])
@pytest.mark.one_in(4)
@pytest.mark.slow
def test_a_loop_that_is_another_one_without_a_mask_is_found(model: type[Recurrent]) -> None:
    made = model()
    program = program_of(made)
    program.verify()
    assert not all(served(program, made)[:6])
