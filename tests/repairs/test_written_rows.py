"""Loops whose steps write to parts of a row of their own, ``result[t, :n] = part``, are one graph for all numbers of
steps, or are never wrong.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch

from onlooker import InputObserver, Program, RejectedCallError
from slow_runs import runs

Run = Callable[[torch.Tensor, torch.Tensor], object]


class Rows(torch.nn.Module):
    """Runs a function of rows of shape (steps, 6), and of two numbers of each."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run

    def forward(self, x: torch.Tensor, numbers: torch.Tensor) -> object:
        return self.run(x, numbers)


def padded_to_one_length(x: torch.Tensor, numbers: torch.Tensor) -> object:
    """As position embeddings of images of several sizes."""
    count = numbers.shape[0]
    result = torch.empty(count, 16, 2)
    for t in range(count):
        height, width = numbers[t].tolist()
        torch._check(height * width <= 16)  # type: ignore[no-untyped-call]
        part = (torch.ones(height, width, 2) * x[t, :2]).reshape(height * width, 2)
        result[t, : height * width] = part
        result[t, height * width :] = part[0]
    return result


def parts_of_a_row(x: torch.Tensor, numbers: torch.Tensor) -> object:
    result, read, chosen = torch.zeros(2, x.shape[0], 6), [], torch.tensor([0, 2])
    for t in range(x.shape[0]):
        result[:, t, :4] = x[t, 2:]
        result[0, t, 3:] = 1.5
        result[1, t, chosen] = x[t, :2]
        result[:, t, None, 2:3] = result[:, t, :1].unsqueeze(1)
        read.append(result[:, t] * 2)
    return result, torch.stack(read)


def a_whole_row_first(x: torch.Tensor, numbers: torch.Tensor) -> object:
    result, view, read = x * 1.0, x[:, 1:], []
    for t in range(x.shape[0]):
        new = x[t] * 3
        result[t] = new
        row = result[t]
        result[t, 0] = 5.0
        row.mul_(2)
        read.append(row + result[t, 1])
    return result, torch.stack(read), view


def parts_of_items(x: torch.Tensor, numbers: torch.Tensor) -> object:
    """As models write a token at the end of each row, mask padding, and move places by a quarter of a pixel."""
    result, mask = x * 2, torch.ones(x.shape, dtype=torch.bool)
    for row, own, (end, _) in zip(result, mask, numbers.tolist(), strict=False):
        row[:end].copy_(row[:end] + 1)
        own[:end] = False
    last = numbers[:, 1]
    for t, place in enumerate(last):
        result[t][place] = 7.0
    return result, mask


def items_by_their_names(x: torch.Tensor, numbers: torch.Tensor) -> object:
    result, pairs, read = x * 2, (x * 3).view(-1, 2, 3), []
    for t, place in enumerate(numbers[:, 0]):
        row = result[t]
        row[result[t] > 0.5] = 0.25
        row += 1
        result[t].clamp_(0, 1)
        pairs[t][:, place.clamp(max=2)] = row[:2]
        for n in range(2):
            pairs[t][n] += torch.sign(pairs[t][n])
        read.append(row * 2)
    return result, pairs, torch.stack(read)


def beyond_a_row(x: torch.Tensor, numbers: torch.Tensor) -> object:
    result = torch.zeros(x.shape[0], 4)
    for t in range(x.shape[0]):
        height, width = numbers[t].tolist()
        result[t, : height * width] = x[t, 0]
        result[t, -height:] = x[t, 1]
        result[t, : width - 1] = height
    return result


def two_rows_in_a_step(x: torch.Tensor, numbers: torch.Tensor) -> object:
    result = torch.zeros(x.shape[0] + 1, 6)
    for t in range(x.shape[0]):
        result[t] = x[t] * 2
        result[t + 1] = x[t] + 1
    return result


def rows_and_columns(x: torch.Tensor, numbers: torch.Tensor) -> object:
    result = torch.zeros(x.shape[0], x.shape[0])
    for t in range(x.shape[0]):
        result[t, :1] = x[t, 0]
        result[:1, t] = x[t, 1]
    return result


def read_by_a_view(x: torch.Tensor, numbers: torch.Tensor) -> object:
    result = torch.zeros(x.shape[0], 6)
    view, read = result[:, 1:4], []
    for t in range(x.shape[0]):
        result[t, :3] = x[t, :3]
        read.append(view[t] * 2)
    return result, torch.stack(read)


def rows_with_one_memory(x: torch.Tensor, numbers: torch.Tensor) -> object:
    result = torch.zeros(1, 6).expand(x.shape[0], 6)
    for t in range(x.shape[0]):
        result[t, :3] = x[t, :3]
    return result * 1


def overlapping_rows(x: torch.Tensor, numbers: torch.Tensor) -> object:
    result = torch.zeros(x.shape[0] + 2).unfold(0, 3, 1)
    for t in range(x.shape[0]):
        result[t] = x[t, :3] * 2
    return result * 1


def a_view_that_outlives_its_step(x: torch.Tensor, numbers: torch.Tensor) -> object:
    result = torch.zeros(x.shape[0], 6)
    for t in range(x.shape[0]):
        result[t, :3] = x[t, :3]
        row = result[t]
    result.mul_(2)
    return result, row + 1


def the_row_before(x: torch.Tensor, numbers: torch.Tensor) -> object:
    result = torch.zeros(x.shape[0], 6)
    for t in range(1, x.shape[0]):
        result[t, :3] = x[t, :3] + result[t - 1, :3]
    return result


def the_number_before(x: torch.Tensor, numbers: torch.Tensor) -> object:
    result, before = torch.zeros(x.shape[0], 6), 1
    for t in range(x.shape[0]):
        height, width = numbers[t].tolist()
        result[t, :before] = x[t, 0]
        before = height * width
    return result


def filled_forward(x: torch.Tensor, numbers: torch.Tensor) -> object:
    """As gaps of a series are filled with what was there before."""
    series = torch.where(x > 0.6, torch.nan, x)
    for t in range(1, x.shape[0]):
        gaps = torch.isnan(series[t])
        series[t][gaps] = series[t - 1][gaps]
    return series.nan_to_num(0.0)


def written_beside_the_row_before(x: torch.Tensor, numbers: torch.Tensor) -> object:
    result = x * 2
    for t in range(1, x.shape[0]):
        before = result[t - 1]
        result[t][0] = before[0]
        before[1] = 7.0
        result[t][2] = before[1]
    return result


def read_again_after_a_write(x: torch.Tensor, numbers: torch.Tensor) -> object:
    result, read = x * 2, []
    for t in range(1, x.shape[0]):
        row = result[t]
        row[0] = result[t - 1][1]
        read.append(row.sum())
    return result, torch.stack(read)


def items_of_a_view(x: torch.Tensor, numbers: torch.Tensor) -> object:
    result, read = x * 2, []
    view = result.view(-1, 2, 3)
    for t in range(x.shape[0]):
        view[t][0] = 5.0
        read.append(result[t].sum())
    return result, torch.stack(read)


def items_that_outlive_their_step(x: torch.Tensor, numbers: torch.Tensor) -> object:
    result, rows = x * 2, []
    for t in range(x.shape[0]):
        row = result[t]
        rows.append(row)
        row[0] = 3.0
    result += 1
    return result, torch.stack(rows)


SERVED = [
    padded_to_one_length,
    parts_of_a_row,
    a_whole_row_first,
    beyond_a_row,
    parts_of_items,
    items_by_their_names,
    filled_forward,
]
NEVER_WRONG = [
    two_rows_in_a_step,
    rows_and_columns,
    read_by_a_view,
    rows_with_one_memory,
    overlapping_rows,
    a_view_that_outlives_its_step,
    the_row_before,
    the_number_before,
    items_of_a_view,
    items_that_outlive_their_step,
    written_beside_the_row_before,
    read_again_after_a_write,
]
SLOW = {
    filled_forward,
    written_beside_the_row_before,
    read_again_after_a_write,
    items_by_their_names,
    items_of_a_view,
    items_that_outlive_their_step,
    parts_of_a_row,
    a_whole_row_first,
    beyond_a_row,
    read_by_a_view,
    rows_and_columns,
    overlapping_rows,
    the_number_before,
}


def call(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(count)
    numbers = torch.randint(1, 5, (count, 2), generator=generator)
    return torch.rand(count, 6, generator=generator), numbers


@functools.cache
def exported(run: Run) -> tuple[Rows, Program]:
    model, observer = Rows(run).eval(), InputObserver()
    with torch.no_grad(), observer(model):
        for count in (3, 5):
            model(*call(count))
    return model, observer.export()


def agree(program: Program, model: Rows, count: int) -> bool:
    """True where a call is exact, False where the program refuses it."""
    try:
        got = program(*call(count))
    except RejectedCallError:
        return False
    with torch.no_grad():
        expected = model(*call(count))
    torch.testing.assert_close(got, expected)
    return True


@pytest.mark.parametrize("run", runs(SERVED, SLOW))  # type: ignore[arg-type]
@pytest.mark.one_in(8)
def test_steps_that_write_to_parts_of_their_rows_are_served(run: Run) -> None:
    model, program = exported(run)
    least = 2 if run is filled_forward else 1  # its loop has a step less
    assert all(agree(program, model, count) for count in (least, 2, 4, 7, 9))


@pytest.mark.parametrize("run", runs(NEVER_WRONG, SLOW))  # type: ignore[arg-type]
@pytest.mark.one_in(2)
def test_what_others_see_of_a_written_row_is_never_wrong(run: Run) -> None:
    model, program = exported(run)
    served = [agree(program, model, count) for count in (3, 5, 1, 2, 4, 7)]
    assert all(served[:2])
    assert not any(served[-2:])  # by the trace, not by a trial


@pytest.mark.slow
def test_rows_that_are_padded_run_in_onnx() -> None:
    model, program = exported(padded_to_one_length)
    assert program.verify().verified
    onnx = program.to("onnx")
    assert all(agree(onnx, model, count) for count in (1, 4, 7))


@pytest.mark.slow
def test_numbers_that_steps_write_are_no_constants_of_a_file() -> None:
    model, program = exported(beyond_a_row)
    onnx = program.to("onnx")
    assert all(agree(onnx, model, count) for count in (1, 4, 7))
