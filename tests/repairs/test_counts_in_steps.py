"""Loops whose steps read a number that they count themselves: ``pos += 1``, ``start = end``."""

# ruff: noqa: SIM113 the models count by themselves, as many do
from __future__ import annotations

import pytest
import torch

from onlooker import InputObserver, RejectedCallError


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(6, 6)
        self.table = torch.nn.Parameter(torch.randn(64, 6))


class Positions(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state, rows, t = x[:, 0] * 0, [], 0
        for row in x.unbind(1):
            state = torch.tanh(self.linear(row) + state + self.table[t])
            rows.append(state)
            t += 1
        return torch.stack(rows, 1)


class Blocks(Layer):
    """Writes three rows in each step."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        result, begin = x.new_zeros(batch, length * 3, width), 0
        for t in range(length):
            result[:, begin : begin + 3] = self.linear(x[:, t]).unsqueeze(1)
            begin += 3
        return result


class BySizes(Layer):
    """Adds a size in each step, by way of another name."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        result, begin = x.new_zeros(batch * length, width), 0
        for row in x:
            with torch.no_grad():
                end = begin + length
                result[begin:end] = self.linear(row)
            begin = end
        return result


class Backwards(Layer):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        place, state, rows = x.shape[1] - 1, x[:, 0] * 0, []
        for _ in range(x.shape[1]):
            state = torch.tanh(self.linear(x[:, place]) + state)
            rows.append(state)
            place -= 1
        return torch.stack(rows, 1), place


class Mean(Layer):
    """Divides by how many rows there were, which begins with 1."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state, rows, n = x[:, 0], [], 0
        for row in x.unbind(1):
            n += 1
            state = state + (row - state) / n
            rows.append(state)
        return torch.stack(rows, 1)


class Decay(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total, step = x[:, 0] * 0, 0
        for row in x.unbind(1):
            total = total + 0.9**step * self.linear(row)
            step += 1
        return total


class Stride(Layer):
    stride = 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result, place = x.new_zeros(x.shape[0], 2 * x.shape[1], 6), 0
        for row in x.unbind(1):
            result[:, place] = self.linear(row)
            place = self.stride + place
        return result


class Limited(Layer):
    """Ends at a limit that no watched call has."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, n = [], 0
        for row in x.unbind(1):
            if n >= len(self.table):
                break
            rows.append(self.linear(row) + self.table[n])
            n += 1
        return torch.stack(rows, 1)


class FirstApart(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state, rows, n = x[:, 0], [], 0
        for row in x.unbind(1):
            state = row if n == 0 else self.linear(row) + state * n
            rows.append(state)
            n += 1
        return torch.stack(rows, 1)


class LeftBehind(Layer):
    """Two counts, read after the loop."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        first, last, rows = 0, x.shape[1] - 1, []
        for _ in range(x.shape[1]):
            rows.append(self.linear(x[:, first]) + x[:, last])
            first += 1
            last -= 1
        return torch.stack(rows, 1) * first, last


def watched(model: torch.nn.Module) -> InputObserver:
    torch.manual_seed(0)
    observer = InputObserver()
    with observer(model):
        model(torch.randn(2, 5, 6))
        model(torch.randn(3, 7, 6))
    return observer


@pytest.mark.one_in(10)
@pytest.mark.parametrize(
    "kind",
    [Decay, Blocks, LeftBehind, Limited, Backwards, Mean, BySizes, Stride, Positions, FirstApart],
)
def test_a_number_that_steps_count_and_read_is_an_index(kind: type[torch.nn.Module]) -> None:
    model = kind()
    program = watched(model).export()
    assert program.verify().verified
    for size in ((5, 4, 6), (2, 11, 6), (4, 30, 6)):
        x = torch.randn(size)
        torch.testing.assert_close(program(x), model(x))


class Parity(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, n = [], 0
        for row in x.unbind(1):
            rows.append(self.linear(row) if n % 2 == 0 else row)
            n += 1
        return torch.stack(rows, 1)


class Begun(Layer):
    """Counts from the begin again."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, n = [], 0
        for row in x.unbind(1):
            rows.append(self.linear(row) + self.table[n])
            n += 1
            if n == 3:
                n = 0
        return torch.stack(rows, 1)


class InAnotherWay(Layer):
    """What each step adds is another number from the second one on."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, n, each = [], 0, 1
        for row in x.unbind(1):
            rows.append(self.linear(row) * n)
            n += each
            each = 3
        return torch.stack(rows, 1)


class Walrus(Layer):
    """Adds more than its statement says."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, n = [], 0
        for row in x.unbind(1):
            place = (n := n + 1)
            rows.append(self.linear(row) * place)
            n += 1
        return torch.stack(rows, 1)


class Skipped(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, n = [], 0
        for t in range(x.shape[1]):
            if t == 2:
                continue
            rows.append(self.linear(x[:, t]) + self.table[n])
            n += 1
        return torch.stack(rows, 1)


class DecidesLater(Layer):
    """How many there were decides after the loop."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, n = [], 0
        for row in x.unbind(1):
            rows.append(self.linear(row) * n)
            n += 1
        result = torch.stack(rows, 1)
        return result + 1 if n > 9 else result


class Sides(Layer):
    """Goes another way at a step that no watched call has."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = []
        for t in range(x.shape[1]):
            row = self.linear(x[:, t])
            rows.append(row * 2 if t == 8 or t > 25 else row)
        return torch.stack(rows, 1)


class ReadByAFunction(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, n = [], 0

        def scaled(row: torch.Tensor) -> torch.Tensor:
            return self.linear(row) * n

        for row in x.unbind(1):
            rows.append(scaled(row))
            n += 1
        return torch.stack(rows, 1)


class Goes(Layer):
    """Another loop goes on with the count."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total, n = x[:, 0] * 0, 0
        for row in x.unbind(1):
            total = total + row * n
            n += 1
        for row in x.unbind(1):
            total = total - self.linear(row) * n
            n += 1
        return total


@pytest.mark.one_in(8)
@pytest.mark.parametrize(
    "kind",
    [Walrus, Goes, Parity, Begun, Sides, InAnotherWay, DecidesLater, Skipped, ReadByAFunction],
)
def test_other_counts_are_never_wrong(kind: type[torch.nn.Module]) -> None:
    model = kind()
    program = watched(model).export()
    served = 0
    for size in ((2, 5, 6), (3, 7, 6), (1, 4, 6), (2, 12, 6), (3, 9, 6), (2, 30, 6)):
        x = torch.randn(size)
        try:
            result = program(x)
        except RejectedCallError:
            continue
        torch.testing.assert_close(result, model(x))
        served += 1
    assert served >= 2
