"""``while`` loops that count up to a size are rolled as ``for`` loops over a range are."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from onlooker import RejectedCallError
from watched_steps import close, watched

pytestmark = pytest.mark.skipif(
    sys.version_info < (3, 11), reason="Python says where an instruction stands from 3.11 on"
)


class Counts(nn.Module):
    """What is counted is read after the loop, too."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        state, t, steps = x[:, 0] * 0, 0, 0
        while t < x.shape[1]:
            state = torch.tanh(state + x[:, t])
            t += 2
            steps += 1
        return state * steps + t, x[:, steps - 1]


class Windows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.width = 4

    def forward(self, x: Tensor) -> Tensor:
        rows, t = [], 0
        while t + self.width <= x.shape[1] and t < 500:
            rows.append(x[:, t : t + self.width].mean(1))
            t += 2
        return torch.stack(rows, 1)


class Backwards(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        state, t = x[:, 0] * 0, x.shape[1] - 1
        while t >= 0:
            state = torch.tanh(state + x[:, t])
            t -= 1
        return state


class FromBothEnds(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        low, high, state = 0, x.shape[1] - 1, x[:, 0] * 0
        while low < high:
            state = state * 0.5 + x[:, low] * x[:, high]
            low += 1
            high -= 1
        return state


class Yields(nn.Module):
    def rows(self, x: Tensor) -> Iterator[Tensor]:
        t = 0
        while t < x.shape[1]:
            yield x[:, t] * 2
            t += 1

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack(list(self.rows(x)), 1)


class Nested(nn.Module):
    """Runs again for a shorter part, and within a loop over layers."""

    def run(self, x: Tensor, depth: int) -> Tensor:
        t, state = 0, x[:, 0] * 0
        while x.shape[1] > t:
            state = torch.tanh(state + x[:, t])
            t = t + 1
        return state if depth == 0 else state + self.run(x[:, :-1], depth - 1)

    def forward(self, x: Tensor) -> Tensor:
        return sum((self.run(x, depth) for depth in range(2)), torch.zeros(()))


class Shrinks(nn.Module):
    """The size changes with each step."""

    def forward(self, x: Tensor) -> Tensor:
        rows, t = [], 0
        while t < x.shape[1]:
            rows.append(x[:, t])
            x = x[:, 1:]
            t += 1
        return torch.stack(rows, 1)


class Leaves(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        state, t = x[:, 0] * 0, 0
        while t < x.shape[1]:
            state = state * 0.9 + x[:, t]
            t += 1
            if t > x.shape[1] // 2:
                break
        return state


class Returns(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        state, t = x[:, 0] * 0, 0
        while t < x.shape[1]:
            state = state + x[:, t]
            t += 1
            if t >= 5:
                return state * 2
        return state


class Jumps(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        state, t = x[:, 0] * 0, 0
        while t < x.shape[1]:
            state = state * 0.9 + x[:, t]
            t += 1 if t % 2 else 2
        return state


class Halves(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        count = x.shape[1]
        while count > 1:
            x = x[:, : count // 2] + x[:, count - count // 2 :]
            count = count // 2
        return x


@pytest.mark.one_in(4)
@pytest.mark.parametrize("kind", [Counts, Windows, Backwards, FromBothEnds, Yields, Nested])
def test_a_loop_that_counts_up_to_a_size_is_one_graph(kind: type[nn.Module]) -> None:
    model = kind()
    program = watched(model)
    assert program.verify().verified, program.report
    assert any("while" in note and "is a scan of torch" in note for note in program.graphs[0].notes)
    for shape in ((3, 9, 4), (1, 30, 4), (2, 5, 4)):
        close(program, model, *shape)
    assert sys.gettrace() is None


@pytest.mark.one_in(4)
@pytest.mark.parametrize("kind", [Shrinks, Leaves, Returns, Jumps, Halves])
def test_other_loops_are_never_wrong(kind: type[nn.Module]) -> None:
    model = kind()
    program = watched(model)
    close(program, model, 2, 7, 4)
    for length in (4, 9, 30):
        with contextlib.suppress(RejectedCallError):
            close(program, model, 1, length, 4)


@pytest.mark.slow
def test_a_run_after_a_debugger_is_right_too() -> None:
    """A debugger is told of lines itself: loops of trials are as Python runs them then."""
    model, seen = Counts(), []
    before = sys.gettrace()
    sys.settrace(lambda frame, *_: seen.append(frame.f_code.co_name) if len(seen) < 3 else None)
    try:
        program = watched(model)
    finally:
        sys.settrace(before)
    close(program, model, 3, 9, 4)
    close(program, model, 3, 20, 4)
