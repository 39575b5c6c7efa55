"""Loops whose steps read or write as many rows as their index says, or rows at a place that they compute of it."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import Tensor, nn

from onlooker import RejectedCallError
from watched_steps import close, watched


def square(x: Tensor) -> Tensor:
    return x @ x.transpose(1, 2)


class Means(nn.Module):
    """Means of all rows so far, of those to come, and of none at first."""

    def forward(self, x: Tensor) -> Tensor:
        rows = []
        for t in range(x.shape[1]):
            rows.append(x[:, : t + 1].mean(1) + x[:, t:].amax(1) - x[:, :t].sum(1) + x[:, : t - 3].sum(1))
        return torch.stack(rows, 1)


class Attention(nn.Module):
    """Each row looks at those before it."""

    def forward(self, x: Tensor) -> Tensor:
        rows = []
        for t in range(x.shape[1]):
            scores = x[:, t : t + 1] @ x[:, : t + 1].transpose(1, 2)
            rows.append((scores.softmax(-1) @ x[:, : t + 1])[:, 0])
        return torch.stack(rows, 1)


class Sliding(nn.Module):
    """A mask of the last three columns, written row by row."""

    def forward(self, x: Tensor) -> Tensor:
        count = x.shape[1]
        mask = torch.full((count, count), float("-inf"))
        for i in range(count):
            mask[i, max(0, i - 3 + 1) : i + 1] = 0.0
        return (square(x) + mask).softmax(-1)


class Triangle(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        mask = torch.zeros(x.shape[1], x.shape[1])
        for i in range(x.shape[1]):
            mask[i, i + 1 :] = float("-inf")
        return (square(x) + mask).softmax(-1)


class Diagonal(nn.Module):
    """One index in two places: what is read, and what is written."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores = square(x)
        read = torch.stack([scores[:, t, t] for t in range(x.shape[1])], 1)
        for t in range(x.shape[1]):
            scores[:, t, t] = 0
        return read, scores


class Computed(nn.Module):
    """Places that are quotients, remainders and bounded: negative ones count from the end."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(3, 4))

    def forward(self, x: Tensor) -> Tensor:
        rows = []
        for t in range(x.shape[1]):
            row = x[:, t // 2 - 1] * self.table[t % 3] + x[:, min(t + 1, x.shape[1] - 1)]
            half, rest = divmod(t, 2)
            rows.append(row + x[:, max(t - 3, 0)] * (half * t - half + (t - half)) + x[:, rest::2].sum(1))
        return torch.stack(rows, 1)


class Generated(nn.Module):
    """Each row is made of all those that were written before."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        made = torch.zeros_like(x)
        for t in range(x.shape[1]):
            before = torch.cat([made[:, :t], x[:, t : t + 1]], 1)
            made[:, t] = self.layer(before.mean(1))
        return made


class Backwards(nn.Module):
    """Reads what it has written, from the end on, and adds to all of it."""

    def forward(self, x: Tensor) -> Tensor:
        made = x.clone()
        for t in range(x.shape[1] - 2, -1, -1):
            made[:, t] = made[:, t] + made[:, t + 1 :].mean(1)
        for t in range(x.shape[1]):
            made[:, t:] += x[:, t : t + 1]
        return made


class Given(nn.Module):
    """Functions that want an int are given the index."""

    def forward(self, x: Tensor) -> Tensor:
        rows = []
        for t, row in enumerate(x.unbind(1)):
            rows.append(row * x.select(1, t) + x.narrow(1, 0, t + 1).sum(1) + x.roll(t, 1)[:, 0])
        for t in range(x.shape[1]):
            weights = torch.arange(t + 1)[None, :, None]
            rows[t] = (weights * x[:, : t + 1]).sum(1) + torch.full((x.shape[0], 4), t)
        return torch.stack(rows, 1)


class GivenAlone(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        rows = []
        for t in range(x.shape[1]):
            weights = torch.arange(t + 1)[None, :, None]
            row = (weights * x[:, : t + 1]).sum(1) + torch.full((x.shape[0], 4), t)
            rows.append(row + x.narrow(1, t, 1)[:, 0] + x.roll(t, 1)[:, 0])
        return torch.stack(rows, 1)


class WritesBefore(nn.Module):
    """For Python the part is a view, which the write changes before it is read."""

    def forward(self, x: Tensor) -> Tensor:
        made = torch.zeros_like(x)
        for t in range(1, x.shape[1]):
            part = made[:, :t]
            made[:, 0] = x[:, t]
            made[:, t] = part.sum(1) + x[:, t]
        return made


class KeepsViews(nn.Module):
    """The list has views of what is written later."""

    def forward(self, x: Tensor) -> Tensor:
        made, parts = torch.zeros_like(x), []
        for t in range(x.shape[1]):
            parts.append(made[:, : t + 1])
            made[:, t] = x[:, t] * 2
        return parts[-1] + 1


class OtherName(nn.Module):
    """Reads what is written by another tensor with its memory."""

    def forward(self, x: Tensor) -> Tensor:
        made = torch.zeros_like(x)
        turned, rows = made.transpose(0, 1), []
        for t in range(x.shape[1]):
            made[:, t] = x[:, t]
            rows.append(turned[: t + 1].sum(0))
        return torch.stack(rows, 1)


class Decides(nn.Module):
    """Python decides by what is computed of the index."""

    def forward(self, x: Tensor) -> Tensor:
        rows = []
        for t in range(x.shape[1]):
            begin = max(t - 3, 0)
            rows.append(x[:, begin : t + 1].sum(1) if begin and t % 2 == 0 else x[:, t] * 0)
        return torch.stack(rows, 1)


class Counts(nn.Module):
    """Adds up sizes."""

    def forward(self, x: Tensor) -> Tensor:
        count = 0
        for t in range(x.shape[1]):
            count = count + x[:, : t + 1].shape[1]
        return x * count


@pytest.mark.one_in(9)
@pytest.mark.parametrize(
    "kind",
    [
        *(Diagonal, Attention, Means, Computed, Sliding, Generated, GivenAlone),
        *(pytest.param(one, marks=pytest.mark.slow) for one in (Triangle, Backwards)),
    ],
)
def test_an_index_that_says_which_rows_is_a_value_of_the_step(kind: type[nn.Module]) -> None:
    model = kind()
    program = watched(model)
    assert program.verify().verified, program.report
    for shape in ((3, 9, 4), (1, 30, 4), (2, 2, 4)):
        close(program, model, *shape, atol=1e-4)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", [WritesBefore, KeepsViews, OtherName, Decides, Counts, Given])
def test_other_uses_of_such_rows_are_refused_or_right(kind: type[nn.Module]) -> None:
    model = kind()
    program = watched(model)
    close(program, model, 2, 7, 4, atol=1e-4)
    with contextlib.suppress(RejectedCallError):
        close(program, model, 1, 9, 4, atol=1e-4)


@pytest.mark.one_in(16)
@pytest.mark.parametrize("target", ["onnx", "openvino"])
@pytest.mark.parametrize("kind", [Attention, Means, Triangle, Diagonal, Computed, Generated, Backwards, Sliding])
def test_runtimes_have_such_loops(kind: type[nn.Module], target: str) -> None:
    pytest.importorskip("openvino" if target == "openvino" else "onnxruntime")
    model = kind()
    program = watched(model).to(target)
    assert program.verify().verified, program.report
    close(program, model, 3, 30, 4, atol=1e-4)
    close(program, model, 1, 5, 4, atol=1e-4)
