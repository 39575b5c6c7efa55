"""Loops whose steps read what was computed two steps before, or earlier: each distance is a state of the scan."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from onlooker import InputObserver, RejectedCallError


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.both = nn.Linear(6, 6), nn.Linear(12, 6)


class TwoNames(Layer):
    """Both names are read after the loop."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = x[:, 0] * 0, x[:, 0]
        for t in range(x.shape[1]):
            first, second = second, torch.tanh(first * 0.5 + second + x[:, t])
        return first + 2 * second


class ThreeNames(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = b = c = x.new_zeros(x.shape[0], 6)
        rows = []
        for row in x.unbind(1):
            new = torch.tanh(row + 0.3 * a - 0.2 * b + 0.1 * c)
            a, b, c = b, c, new
            rows.append(new)
        return torch.stack(rows, 1)


class OfAList(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states = [x[:, 0] * 0, x[:, 0] * 0 + 1]
        for row in x.unbind(1):
            states.append(torch.tanh(self.linear(row) + states[-1] - 0.5 * states[-2]))
        return torch.stack(states[2:], 1)


class Filter(Layer):
    """A filter of second order, with the rows of the steps before."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y1 = y2 = x1 = x2 = torch.zeros_like(x[:, 0])
        rows = []
        for row in x.unbind(1):
            y = 0.4 * row + 0.3 * x1 + 0.2 * x2 - 0.5 * y1 - 0.1 * y2
            x2, x1, y2, y1 = x1, row, y1, y
            rows.append(y)
        return torch.stack(rows, 1)


class FarAlone(Layer):
    """Reads the state of two steps before, and not that of the step before."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        old, now, rows = x[:, 0] * 0, x[:, 0] * 0 + 1, []
        for row in x.unbind(1):
            state = torch.tanh(self.linear(row) + old)
            old, now = now, state
            rows.append(state)
        return torch.stack(rows, 1), old


class Window(Layer):
    """The last four states are a list."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        window, rows = [x[:, 0] * k for k in range(4)], []
        for row in x.unbind(1):
            state = torch.tanh(self.linear(row) + window[0] - window[1] * window[2] + window[3])
            window = [*window[1:], state]
            rows.append(state)
        return torch.stack(rows, 1)


class Queue(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        queue, rows = [x[:, 0] * k for k in range(3)], []
        for row in x.unbind(1):
            state = torch.tanh(self.linear(row) + torch.stack(queue).sum(0))
            queue.append(state)
            queue.pop(0)
            rows.append(state)
        return torch.stack(rows, 1)


class LateContext(Layer):
    """Attends with the context of two steps before: an attentional decoder."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        context = old = x.mean(1)
        rows = []
        for row in x.unbind(1):
            query = torch.tanh(self.both(torch.cat([row, old], 1)))
            weights = (x @ query.unsqueeze(-1)).softmax(1)
            old, context = context, (weights * x).sum(1)
            rows.append(query + old)
        return torch.stack(rows, 1)


class ThirdFromEnd(Layer):
    """Of what the loop leaves behind, the state before the last two is read."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = b = c = x[:, 0] * 0
        for row in x.unbind(1):
            a, b, c = b, c, torch.tanh(row + a + c)
        return a - b * c


def watched(model: nn.Module) -> InputObserver:
    torch.manual_seed(0)
    observer = InputObserver()
    with observer(model):
        model(torch.randn(2, 5, 6))
        model(torch.randn(3, 7, 6))
    return observer


@pytest.mark.one_in(9)
@pytest.mark.parametrize(
    "kind",
    [TwoNames, OfAList, Filter, Window, ThreeNames, FarAlone, ThirdFromEnd, Queue, LateContext],
)
def test_states_of_earlier_steps_are_carried(kind: type[nn.Module]) -> None:
    model = kind()
    program = watched(model).export()
    assert program.verify().verified
    assert len(program.graphs) == 1
    for size in ((5, 2, 6), (2, 11, 6), (4, 30, 6)):
        x = torch.randn(size)
        torch.testing.assert_close(program(x), model(x))


class WrittenTo(Layer):
    """Writes to what an earlier step has computed."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = x[:, 0] * 0, x[:, 0] * 1
        for row in x.unbind(1):
            state = torch.tanh(first + self.linear(row))
            second.add_(state)
            first, second = second, state
        return first - second


class OtherBegins(Layer):
    """The first steps begin with numbers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = 0.5, 1.5
        for row in x.unbind(1):
            first, second = second, torch.tanh(row + first)  # type: ignore[assignment]
        return first - second  # type: ignore[return-value]


class Alternating(Layer):
    """Every other step begins anew."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states = [x[:, 0] * 0]
        for t, row in enumerate(x.unbind(1)):
            states.append(torch.tanh(row + states[t - 1 if t % 3 else 0]))
        return torch.stack(states, 1)


class BeginsAnew(Layer):
    """Some steps have what was before the loop in the place of what two steps before computed."""

    flags = (True, False, False, False, True, False) * 40

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        begin = first = second = x[:, 0] * 0 + 1
        for row, flag in zip(x.unbind(1), self.flags, strict=False):
            state = torch.tanh(row + (begin if flag else first))
            first, second = second, state
        return first + second


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", [BeginsAnew, WrittenTo, OtherBegins, Alternating])
def test_other_states_of_earlier_steps_are_never_wrong(kind: type[nn.Module]) -> None:
    model = kind()
    program = watched(model).export()
    served = 0
    for size in ((2, 5, 6), (3, 7, 6), (1, 3, 6), (2, 12, 6), (3, 9, 6), (2, 30, 6)):
        x = torch.randn(size)
        try:
            result = program(x)
        except RejectedCallError:
            continue
        torch.testing.assert_close(result, model(x))
        served += 1
    assert served >= 2
