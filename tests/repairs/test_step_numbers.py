"""Loops whose steps read numbers from tensors, as lengths of packed parts, are one graph for all numbers of
parts, or are never wrong.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

import onlooker
from onlooker import InputObserver, Program, RejectedCallError
from slow_runs import runs

Run = Callable[[torch.nn.Linear, torch.Tensor, torch.Tensor], object]


class Packed(torch.nn.Module):
    """Runs a function of packed rows of shape (total, 4), and of the lengths of their parts."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> object:
        return self.run(self.linear, x, lengths)


def attention_of_parts(linear: torch.nn.Linear, x: torch.Tensor, lengths: torch.Tensor) -> object:
    splits = [torch.split(one, lengths.tolist()) for one in (linear(x), x, x * 2)]
    return torch.cat([(q @ k.T).softmax(-1) @ v for q, k, v in zip(*splits, strict=True)])


def slices(linear: torch.nn.Linear, x: torch.Tensor, lengths: torch.Tensor) -> object:
    start, rows, means = 0, [x[:1]], []
    for length in lengths.tolist():
        part = linear(x[start : start + length]).softmax(0)
        rows.append(part)
        means.append(part.sum(0))
        start += length
    return torch.cat(rows), torch.stack(means)


def positions(linear: torch.nn.Linear, x: torch.Tensor, lengths: torch.Tensor) -> object:
    ids = []
    for length in lengths.tolist():
        rows, columns = torch.meshgrid(torch.arange(length), torch.arange(2), indexing="ij")
        ids.append(torch.stack([rows.flatten(), columns.flatten()], -1))
    return torch.cat(ids), x


def totals(linear: torch.nn.Linear, x: torch.Tensor, lengths: torch.Tensor) -> object:
    area, number, parts = x.shape[0], 0, []
    for length in lengths.tolist():
        parts.append(torch.full((length,), area + number))
        area = area + length * length
        number += 1
    return torch.cat(parts) * number, x.new_zeros(area)


def along_the_last_dimension(linear: torch.nn.Linear, x: torch.Tensor, lengths: torch.Tensor) -> object:
    start, parts = 0, []
    for length in lengths.tolist():
        parts.append(x.T[:, start : start + length].cumsum(-1))
        start += length
    return torch.cat(parts, dim=1)


def lengths_that_values_say(linear: torch.nn.Linear, x: torch.Tensor, lengths: torch.Tensor) -> object:
    parts = []
    for length in lengths.tolist():
        numbers = torch.arange(length)
        parts.append(numbers[numbers % 2 == 0])
    return torch.cat(parts), x


def blocks(linear: torch.nn.Linear, x: torch.Tensor, lengths: torch.Tensor) -> object:
    parts = []
    for length in lengths.tolist():
        part = linear(torch.arange(length)[:, None].expand(-1, 4) * x.sum()).reshape(length // 2 * 2, -1)
        parts.append(part)
    return torch.cat(parts), x


def size_of_the_step(linear: torch.nn.Linear, x: torch.Tensor, lengths: torch.Tensor) -> object:
    parts = []
    for length, size in zip(lengths.tolist(), torch.full_like(lengths, 2).tolist(), strict=True):
        parts.append(torch.arange(length // size * size))
    return torch.cat(parts), x


def items(linear: torch.nn.Linear, x: torch.Tensor, lengths: torch.Tensor) -> object:
    parts = []
    for one in lengths:
        length = one.item()
        parts.append(torch.ones(length) * min(length, 3))
    return torch.cat(parts), x


def demands(linear: torch.nn.Linear, x: torch.Tensor, lengths: torch.Tensor) -> object:
    parts = []
    for length in lengths.tolist():
        torch._check(length > 1, lambda: "too short")  # type: ignore[no-untyped-call]
        parts.append(torch.ones(length))
    return torch.cat(parts), x


def last_number(linear: torch.nn.Linear, x: torch.Tensor, lengths: torch.Tensor) -> object:
    parts = []
    for length in lengths.tolist():
        parts.append(torch.ones(length))
    return torch.cat(parts), x[:length]


def last_number_decides(linear: torch.nn.Linear, x: torch.Tensor, lengths: torch.Tensor) -> object:
    parts = []
    for length in lengths.tolist():
        parts.append(torch.ones(length))
    return torch.cat(parts) * 2 if length > 3 else torch.cat(parts)


def number_of_the_step_before(linear: torch.nn.Linear, x: torch.Tensor, lengths: torch.Tensor) -> object:
    before, parts = 1, []
    for length in lengths.tolist():
        parts.append(torch.ones(length) * before)
        before = length
    return torch.cat(parts), x


def number_two_steps_before(linear: torch.nn.Linear, x: torch.Tensor, lengths: torch.Tensor) -> object:
    first, second, parts = 1, 2, []
    for length in lengths.tolist():
        parts.append(torch.ones(length) * first)
        first, second = second, length
    return torch.cat(parts), x


def list_of_numbers(linear: torch.nn.Linear, x: torch.Tensor, lengths: torch.Tensor) -> object:
    doubled = [2 * length for length in lengths.tolist()]
    return x * max(doubled) + len(doubled)


def list_of_constants(linear: torch.nn.Linear, x: torch.Tensor, lengths: torch.Tensor) -> object:
    return x * len([0 for _ in lengths.tolist()])


def number_of_parts(linear: torch.nn.Linear, x: torch.Tensor, lengths: torch.Tensor) -> object:
    parts = torch.split(x, lengths.tolist())
    return torch.stack([part.sum(0) for part in parts]) * len(parts)


def first_part(linear: torch.nn.Linear, x: torch.Tensor, lengths: torch.Tensor) -> object:
    parts = torch.split(x, lengths.tolist())
    return torch.stack([part.sum(0) for part in parts]) + parts[0].sum(0)


def branch_on_a_number(linear: torch.nn.Linear, x: torch.Tensor, lengths: torch.Tensor) -> object:
    parts = []
    for length in lengths.tolist():
        part = torch.ones(length)
        parts.append(part * 2 if length > 1 else part)
    return torch.cat(parts), x


def total_decides(linear: torch.nn.Linear, x: torch.Tensor, lengths: torch.Tensor) -> object:
    start, parts = 0, []
    for length in lengths.tolist():
        part = x[start : start + length]
        parts.append(part * 2 if start > 0 else part)
        start += length
    return torch.cat(parts)


def product_of_numbers(linear: torch.nn.Linear, x: torch.Tensor, lengths: torch.Tensor) -> object:
    product, parts = 1, []
    for length in lengths.tolist():
        product *= length
        parts.append(torch.ones(length) * product)
    return torch.cat(parts), x


def greatest_so_far(linear: torch.nn.Linear, x: torch.Tensor, lengths: torch.Tensor) -> object:
    greatest, parts = 0, []
    for length in lengths.tolist():
        greatest = max(greatest, length)
        parts.append(torch.ones(length) * greatest)
    return torch.cat(parts), x


def counts_of_numbers(linear: torch.nn.Linear, x: torch.Tensor, lengths: torch.Tensor) -> object:
    counts: dict[int, int] = {}
    parts = []
    for length in lengths.tolist():
        counts[length] = counts.get(length, 0) + 1
        parts.append(torch.ones(length) * counts[length])
    return torch.cat(parts), x


def weighted_sum(linear: torch.nn.Linear, x: torch.Tensor, lengths: torch.Tensor) -> object:
    start, total = 0, 0
    for length in lengths.tolist():
        total = total + x[start : start + length].sum(0) * length
        start += length
    return total


def mask_of_blocks(linear: torch.nn.Linear, x: torch.Tensor, lengths: torch.Tensor) -> object:
    mask, start = torch.zeros(x.shape[0], x.shape[0]), 0
    for length in lengths.tolist():
        mask[start : start + length, start : start + length] = 1
        start += length
    return mask @ x


def written_before_it_is_read(linear: torch.nn.Linear, x: torch.Tensor, lengths: torch.Tensor) -> object:
    parts = []
    for row in lengths:
        double = row + torch.zeros(1, dtype=torch.int64)
        first = double[:1]
        first.mul_(2)
        parts.append(torch.ones(double[0].item()))
    return torch.cat(parts), x


def column_of_a_number(linear: torch.nn.Linear, x: torch.Tensor, lengths: torch.Tensor) -> object:
    columns = [x[i, lengths[i] % 4 - 1] for i in range(len(lengths))]
    return torch.stack(columns), torch.stack([linear(x)[..., lengths[i] % 4] for i in range(len(lengths))])


def rounded_share(linear: torch.nn.Linear, x: torch.Tensor, lengths: torch.Tensor) -> object:
    shares, means, deviations = lengths.float() / x.shape[0], [], []
    for i in range(len(lengths)):
        n = int(torch.round(shares[i] * x.shape[0]))
        means.append(x[0:n, ...].mean(0) + x[-1])
        deviations.append(x[0:n, ...].std(0))
    return torch.cat([torch.stack(means), torch.stack(deviations)], 1)


def places_of_grids(linear: torch.nn.Linear, x: torch.Tensor, lengths: torch.Tensor) -> object:
    """As models of images and text have placed their parts: the sizes of a step are tensors."""
    grids, found = torch.stack([torch.ones_like(lengths), lengths * 2, lengths * 4], 1), []
    for time, height, width in grids:
        rows = torch.arange(height).unsqueeze(1).expand(-1, width)
        rows = rows.reshape(height // 2, 2, width // 2, 2).permute(0, 2, 1, 3).flatten()
        columns = torch.arange(width).unsqueeze(0).expand(height, -1)
        columns = columns.reshape(height // 2, 2, width // 2, 2).permute(0, 2, 1, 3).flatten()
        found.append(torch.stack([rows, columns], -1).repeat(time, 1))
    return torch.cat(found), linear(x)


def items_at_two_numbers(linear: torch.nn.Linear, x: torch.Tensor, lengths: torch.Tensor) -> object:
    table, own, found = linear.weight @ linear.weight.T, torch.zeros(lengths.shape[0], 2, 3), []
    for t, length in enumerate(lengths):
        row, column = length % 2, length % 3
        found.append(table[row, column] + table[column, 0])
        own[t][row, column] = table[column, row]
        own[t][:, column] += 1
    return torch.stack(found), own


SERVED = [
    places_of_grids,
    items_at_two_numbers,
    column_of_a_number,
    rounded_share,
    weighted_sum,
    mask_of_blocks,
    written_before_it_is_read,
    attention_of_parts,
    slices,
    positions,
    totals,
    along_the_last_dimension,
    lengths_that_values_say,
    size_of_the_step,
    items,
    demands,
]
NEVER_WRONG = [
    total_decides,
    last_number,
    last_number_decides,
    number_of_the_step_before,
    number_two_steps_before,
    list_of_numbers,
    list_of_constants,
    number_of_parts,
    first_part,
    branch_on_a_number,
    product_of_numbers,
    greatest_so_far,
    counts_of_numbers,
]
#: each is much like one that stays
SLOW = {positions, along_the_last_dimension, lengths_that_values_say, number_two_steps_before, first_part}
SLOW |= {
    slices,
    places_of_grids,
    items_at_two_numbers,
    weighted_sum,
    written_before_it_is_read,
    list_of_constants,
    product_of_numbers,
    greatest_so_far,
    counts_of_numbers,
}


def call(*lengths: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(sum(lengths))
    return torch.rand(max(1, sum(lengths)), 4, generator=generator), torch.tensor(lengths)


@functools.cache
def exported(run: Run, watched: tuple[tuple[int, ...], ...] = ((3, 5), (4, 2, 6))) -> tuple[Packed, Program]:
    torch.manual_seed(0)
    model, observer = Packed(run).eval(), InputObserver()
    with torch.no_grad(), observer(model):
        for lengths in watched:
            model(*call(*lengths))
    return model, observer.export()


def leaves(result: object) -> list[torch.Tensor]:
    return list(result) if isinstance(result, tuple) else [result]  # type: ignore[list-item]


def agree(program: Program, model: Packed, lengths: Sequence[int]) -> bool:
    """True where a call is exact, False where the program refuses it."""
    x, given = call(*lengths)
    try:
        got = program(x, given)
    except RejectedCallError:
        return False
    with torch.no_grad():
        expected = model(x, given)
    for one, other in zip(leaves(got), leaves(expected), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5, equal_nan=True)
    return True


@pytest.mark.parametrize("run", runs(SERVED, SLOW))
@pytest.mark.one_in(4)
def test_steps_that_read_numbers_are_served_for_other_numbers_of_steps(run: Run) -> None:
    model, program = exported(run)
    for lengths in ((7,), (3, 5, 2, 4), (2, 2), (9, 3, 4, 5, 6, 2, 8)):
        assert agree(program, model, lengths), lengths
    assert program.verify().verified


@pytest.mark.slow
def test_a_part_may_be_short_or_empty() -> None:
    model, program = exported(attention_of_parts)
    for lengths in ((1,), (1, 1, 4), (3, 0, 2), (0, 4)):
        assert agree(program, model, lengths), lengths


@pytest.mark.slow
def test_a_width_that_is_computed_from_numbers_is_checked() -> None:
    model, program = exported(blocks, ((2, 4), (4, 2, 6)))
    assert agree(program, model, (8, 2, 4, 4))
    with pytest.raises(RuntimeError, match="Sizes of tensors must match"):
        model(*call(4, 3))
    with pytest.raises(RejectedCallError):
        program(*call(4, 3))


@pytest.mark.slow
def test_a_watched_part_may_be_shorter_than_a_branch_assumes() -> None:
    model, program = exported(branch_on_a_number, ((1, 3), (2, 1, 4)))
    assert agree(program, model, (1, 3))
    assert agree(program, model, (2, 1, 4))
    for lengths in ((1,), (3, 1), (2, 2), (1, 1, 1), (5, 1, 1, 3)):
        agree(program, model, lengths)


def test_a_condition_that_the_model_demands_of_a_number_is_checked() -> None:
    model, program = exported(demands)
    with pytest.raises(RuntimeError, match="too short"):
        model(*call(4, 1))
    with pytest.raises(RejectedCallError):
        program(*call(4, 1))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("run", runs(NEVER_WRONG, SLOW))
@pytest.mark.slow
def test_what_python_keeps_of_a_number_is_never_wrong(run: Run) -> None:
    model, program = exported(run)
    draw = random.Random(7)
    calls = [tuple(draw.choice((1, 2, 3, 5, 8)) for _ in range(count)) for count in (1, 2, 2, 3, 3, 4, 6)]
    served = [agree(program, model, lengths) for lengths in ((3, 5), (4, 2, 6), *calls)]
    assert all(served[:2])


@pytest.mark.slow
def test_parts_of_other_numbers_run_in_onnx() -> None:
    model, program = exported(attention_of_parts)
    onnx = program.to("onnx")
    for lengths in ((7,), (3, 5, 2, 4), (2, 2)):
        assert agree(onnx, model, lengths), lengths


class Grids(torch.nn.Module):
    """Adds to each patch its row and column in its image, as encoders of images do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 4)

    def forward(self, patches: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        places = []
        for frames, height, width in grid.tolist():
            rows = torch.arange(height).view(height // 2, 2, 1, 1).expand(-1, -1, width // 2, 2)
            columns = torch.arange(width).view(1, 1, width // 2, 2).expand(height // 2, 2, -1, -1)
            place = torch.stack([rows.transpose(1, 2).flatten(), columns.transpose(1, 2).flatten()], -1)
            places.append(place.repeat(frames, 1))
        return patches + self.linear(torch.cat(places).to(patches.dtype))


def images(*grids: tuple[int, int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    grid = torch.tensor(grids)
    return torch.rand(int(grid.prod(1).sum()), 4), grid


def test_images_of_a_grid_are_served_for_other_numbers_and_sizes_of_images() -> None:
    model, observer = Grids().eval(), InputObserver()
    with torch.no_grad(), observer(model):
        model(*images((1, 4, 6), (1, 8, 4)))
        model(*images((1, 4, 4), (2, 4, 6), (1, 2, 4)))
    program = observer.export()
    assert len(program.graphs) == 1
    assert program.verify().verified
    for grids in (((1, 6, 6),), ((1, 4, 10), (3, 6, 6), (1, 2, 2), (1, 12, 6))):
        given = images(*grids)
        with torch.no_grad():
            torch.testing.assert_close(program(*given), model(*given), rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("run", [slices, attention_of_parts])
def test_a_saved_program_serves_other_numbers_of_steps(run: Run, tmp_path: Path) -> None:
    model, program = exported(run)
    program.save(tmp_path)
    again = onlooker.load(tmp_path)
    for lengths in ((7,), (3, 5, 2, 4), (2, 2)):
        assert agree(again, model, lengths), lengths


@pytest.mark.slow
@pytest.mark.parametrize("target", ["openvino", "aoti"])
def test_targets_without_such_loops_serve_the_watched_numbers_of_parts(target: str) -> None:
    model, observer = Packed(attention_of_parts).eval(), InputObserver()
    with torch.no_grad(), observer(model):
        for lengths in ((3, 5), (4, 2, 6)):
            model(*call(*lengths))
    program = observer.export(to=target)
    assert [agree(program, model, lengths) for lengths in ((2, 4), (3, 5, 2))] == [True, True]
