"""Loops whose steps compute with their index, or read rows of what the steps before them computed."""

from __future__ import annotations

import pytest
import torch

from onlooker import InputObserver, RejectedCallError


class Compared(torch.nn.Module):
    """Looks at the steps from its own one on."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = x[:, 0] * 0
        for i in range(x.shape[1]):
            total = total + (x * (torch.arange(x.shape[1]) >= i)[:, None]).sum(1).tanh()
        return total


class Computed(torch.nn.Module):
    """Computes with its index on either side, from the last step on."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = x[:, 0] * 0
        for i in reversed(range(x.shape[1])):
            state = (i - state) * 0.1 + x[:, i] / (i + 2) + (2 * i) * x[:, i]
        return state


class OfSmallInts(torch.nn.Module):
    """A number leaves the dtype of a tensor as it is."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = (x[:, 0] > 0).to(torch.int8)
        for i in range(x.shape[1]):
            state = state + i
        return state


class OwnRows(torch.nn.Module):
    """Reads a row of its own state: elimination of the columns of a matrix."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = x.clone()
        for i in range(x.shape[1]):
            state = state - 0.1 * state[:, i, 1:].sum(1)[:, None, None]
        return state


class Suppression(torch.nn.Module):
    """Greedy suppression of intervals that lie over better ones."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        begin, length = x[0, :, 0], x[0, :, 1].abs() + 0.5
        places = torch.arange(begin.shape[0])
        kept = torch.ones(begin.shape[0], dtype=torch.bool)
        for i in range(begin.shape[0]):
            over = (begin - begin[i]).abs() < (length + length[i]) / 2
            kept = kept & ~(over & (places > i) & kept[i])
        return kept.float()


class EverySecond(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = x[:, 0] * 0
        for i in range(x.shape[1] // 2):
            state = torch.tanh(state + x[:, 2 * i] - x[:, 2 * i + 1])
        return state


class Filter(torch.nn.Module):
    """Writes a row that the next step reads."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = torch.zeros_like(x)
        result[:, 0] = x[:, 0]
        for t in range(1, x.shape[1]):
            result[:, t] = 0.5 * result[:, t - 1] + x[:, t]
        return result


class Returns(torch.nn.Module):
    """Discounted sums of what is to come, from the last step on."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = torch.zeros(x.shape[0], x.shape[1] + 1, 3)
        for t in reversed(range(x.shape[1])):
            result[:, t] = x[:, t] + 0.9 * result[:, t + 1]
        return result[:, :-1]


class Positions(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(32, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = x[:, 0] * 0
        for t in range(x.shape[1]):
            state = torch.tanh(state + x[:, t] + self.table(torch.tensor(t)))
        return state


class Windows(torch.nn.Module):
    """Reads some rows at each step, one row apart."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count = x.shape[1] - 2
        rows = [x[:, t : t + 3].softmax(1).sum(1) + x[..., t : t + 2, 0].mean() for t in range(count)]
        return torch.stack(rows, 1)


class Chunks(torch.nn.Module):
    """Reads whole chunks of three rows, and what is left over by itself."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = x[:, -1] * 0
        for i in range(x.shape[1] // 3):
            state = torch.tanh(state + x[:, 3 * i : 3 * i + 3].sum(1))
        return state + x[:, -1]


class Floats(torch.nn.Module):
    """Computes floats from its index: a part of the steps, a discount, a mean so far."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count, state, mean = x.shape[1], x[:, 0] * 0, x[:, 0] * 0
        for t in range(count):
            part, each = (t + 1) / count, 1 / (t + 1)
            mean = mean * (1 - each) + x[:, t] * each
            state = (1 - part) * state + part * x[:, t] - 0.9**t * mean + (t * 0.5 + t) * (t + t / 4 + 2) ** 0.5
        return state + mean


class FloatsWithInts(torch.nn.Module):
    """A float and a tensor of ints give a float."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        whole, total = (x * 10).long(), 0.0
        for t in range(x.shape[1]):
            total = total + whole[:, t] * (t / 3) + torch.tensor(t / 3).sin()
        return total  # type: ignore[return-value]


def watched(model: torch.nn.Module) -> InputObserver:
    torch.manual_seed(0)
    observer = InputObserver()
    with observer(model):
        model(torch.randn(2, 6, 3))
        model(torch.randn(3, 8, 3))
    return observer


@pytest.mark.one_in(13)
@pytest.mark.parametrize(
    "kind",
    [
        *(Compared, Computed, OfSmallInts, OwnRows, Suppression, EverySecond, Filter, Returns, Positions),
        *(Windows, Chunks, Floats, FloatsWithInts),
    ],
)
def test_an_index_that_computes_is_a_tensor_of_each_step(kind: type[torch.nn.Module]) -> None:
    model = kind()
    program = watched(model).export()
    assert program.verify().verified
    for size in ((1, 4, 3), (2, 12, 3), (3, 7, 3)):
        x = torch.randn(size)
        torch.testing.assert_close(program(x), model(x))


class RowBefore(torch.nn.Module):
    """Reads the last row in the first step."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = x.clone()
        for i in range(x.shape[1]):
            state = state - 0.1 * state[:, i - 1][:, None]
        return state


class EverySecondWritten(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result, state = torch.zeros_like(x), x[:, 0] * 0
        for i in range(x.shape[1] // 2):
            state = torch.tanh(state + x[:, i])
            result[:, 2 * i] = state
        return result


class OfHalfNumbers(torch.nn.Module):
    """A tensor of an int would be of another dtype than the int beside a number of 16 bits."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = torch.zeros((), dtype=torch.int16)
        for i in range(x.shape[1]):
            total = total + i * (x[0, i, 0] > 0).to(torch.int16)
        return total


class Parity(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = x[:, 0] * 0
        for i in range(x.shape[1]):
            state = state + x[:, i] if i % 2 == 0 else state * x[:, i]
        return state


class InPlace(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = x[:, 0] * 0
        for i in range(x.shape[1]):
            row = x[:, i].clone()
            row.add_(i)
            state = state + row
        return state


class ViewOfNext(torch.nn.Module):
    """Reads the row that the next step writes, after that step has."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state, row, total = x.clone(), x[:, 0] * 1, x[:, 0] * 0
        for t in range(x.shape[1] - 1):
            state[:, t] = state[:, t] * 2
            total = total + row
            row = state[:, t + 1]
        return total


class ViewByAnotherName(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state, total = x.clone(), x[:, 0] * 0
        for t in range(1, x.shape[1]):
            same = t
            row = state[:, same]
            state[:, t] = state[:, t - 1] * 0.5
            total = total + row
        return total


class ViewOfAnotherName(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state, total = x.clone(), x[:, 0] * 0
        alias = state
        for t in range(1, x.shape[1]):
            before = state[:, t - 1] * 0.5
            row = alias[:, t]
            state[:, t] = before
            total = total + row
        return total


class ViewAfterLoop(torch.nn.Module):
    """Rows that are read are views of what is changed after the loop."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state, rows = x.clone(), []
        for t in range(1, x.shape[1]):
            state[:, t] = state[:, t] + state[:, t - 1]
            rows.append(state[:, t - 1])
        state.mul_(3)
        return torch.stack(rows, 1)


class ViewOfOwn(torch.nn.Module):
    """A row of what the step has computed, which it changes in place."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state, total = x.clone(), x[:, 0] * 0
        for t in range(x.shape[1]):
            state = state * 0.9
            row = state[:, t]
            state += 1
            total = total + row
        return total


class RowChanged(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = x.clone()
        for t in range(1, x.shape[1]):
            row = state[:, t - 1]
            state[:, t] = state[:, t] + row
            row += 7
        return state


class WindowBeyondTheEnd(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([x[:, t : t + 3].sum(1) for t in range(x.shape[1])], 1)


class WindowBeforeTheBegin(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([x[:, t - 2 : t + 1].sum(1) for t in range(x.shape[1])], 1)


class WindowWritten(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, total = x.clone(), x[:, 0] * 0
        for t in range(x.shape[1] - 2):
            window = x[:, t : t + 3]
            window.add_(1.0)
            total = total + window.sum(1) * t
        return total


class WindowOfWrittenRows(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = x.clone()
        for t in range(x.shape[1] - 2):
            state[:, t + 2] = state[:, t : t + 2].sum(1) * 0.5
        return state


class WindowOfAnotherSize(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        width, count = x.shape[0], x.shape[1] - x.shape[0] + 1
        return torch.stack([x[:, t : t + width].sum(1) for t in range(count)], 1)


class FloatDecides(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = x[:, 0] * 0
        for t in range(x.shape[1]):
            total = total + x[:, t] if t / x.shape[1] > 0.5 else total
        return total


class FloatReturned(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total, part = x[:, 0] * 0, 0.0
        for t in range(x.shape[1]):
            part = t / x.shape[1]
            total = total + x[:, t] * part
        return total * part


class FloatOfTheStepBefore(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total, part = x[:, 0] * 0, 0.0
        for t in range(x.shape[1]):
            total = total + x[:, t] * part
            part = t / x.shape[1]
        return total


class IntPowers(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        whole = (x * 10).long()
        total = whole[:, 0] * 0
        for t in range(x.shape[1]):
            total = total + whole[:, t] * t**2
        return total


class FloatWithHalf(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = x[:, 0] * 0
        for t in range(x.shape[1]):
            total = total + (x[:, t].half() * (t / 3)).float()
        return total


FLOATS = [FloatDecides, FloatReturned, FloatOfTheStepBefore, IntPowers, FloatWithHalf]
OTHERS = [RowBefore, EverySecondWritten, OfHalfNumbers, Parity, InPlace]
WINDOWS = [WindowBeyondTheEnd, WindowBeforeTheBegin, WindowWritten, WindowOfWrittenRows, WindowOfAnotherSize]
VIEWS = [ViewOfNext, ViewByAnotherName, ViewOfAnotherName, ViewAfterLoop, ViewOfOwn, RowChanged]


@pytest.mark.one_in(21)
@pytest.mark.parametrize("kind", VIEWS + OTHERS + WINDOWS + FLOATS)
def test_other_uses_of_an_index_are_never_wrong(kind: type[torch.nn.Module]) -> None:
    model = kind()
    program = watched(model).export()
    served = 0
    for size in ((2, 6, 3), (3, 8, 3), (1, 4, 3), (2, 12, 3), (3, 7, 3)):
        x = torch.randn(size)
        try:
            result = program(x)
        except RejectedCallError:
            continue
        torch.testing.assert_close(result, model(x))
        served += 1
    assert served >= 2
