"""Sides of decisions that are proven by runs: which of them need no trace, and which do."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

import onlooker
from onlooker.graphs.one_plan import search as searches

Call = tuple[int, int]


class Step(torch.nn.Module):
    """A layer that decides by the number of its rows, ``n``, and those of a cache, ``past``."""

    def __init__(self, side: Callable[..., Any]) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.first, self.second = (torch.nn.Parameter(torch.zeros(4)) for _ in range(2))
        self.side, self.count, self.table = side, 0, dict[int, int]()

    def forward(self, x: torch.Tensor, cache: torch.Tensor) -> Any:
        past = 0 if cache.numel() == 0 else cache.shape[1]
        rows = torch.cat([cache, self.linear(x)], dim=1)
        return self.side(self, rows, x.shape[1], past)


def exported(side: Callable[..., Any], calls: Sequence[Call]) -> tuple[Any, Any, list[Any]]:
    """A program of the model, which was watched with some rows and rows of a cache; the model, and the sizes of
    the traces after the first one.
    """
    torch.manual_seed(0)
    model = Step(side).eval()
    observer = onlooker.InputObserver()
    with observer(model), torch.no_grad():
        for n, past in calls:
            model(torch.randn(2, n, 4), torch.randn(2, past, 4))
    traced: list[Any] = []
    trace = searches.PlanSearch._trace

    def noted(search: Any, choice: Any) -> Any:
        traced.append(dict(choice))
        return trace(search, choice)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(searches.PlanSearch, "_trace", noted)
        return observer.export(), model, traced


def is_right(program: Any, model: Any, call: Call) -> bool:
    """True where the program gives what the model gives, or refuses the call."""
    n, past = call
    arguments = torch.randn(3, n, 4), torch.randn(3, past, 4)
    with torch.no_grad():
        expected = model(*arguments)
    try:
        got = program(*arguments)
    except onlooker.RejectedCallError:
        return False
    torch.testing.assert_close(got, expected)
    return True


WATCHED = [(7, 0), (1, 7), (1, 8)]
EVERYDAY = [(5, 0), (1, 5), (6, 3), (1, 0), (1, 1), (1, 40), (1, 301)]


def plain(model: Any, rows: Any, n: int, past: int) -> Any:
    """The same on each side."""
    if n > 1:
        return rows * 2
    return rows.mul(2)


def test_that_sides_of_the_same_operators_are_not_traced() -> None:
    program, model, traced = exported(plain, WATCHED)
    assert traced == []
    assert len(program.graphs) == 1
    assert program.verify()
    assert all(is_right(program, model, call) for call in EVERYDAY)


def of_one_row(model: Any, rows: Any, n: int, past: int) -> Any:
    return rows * 3 if n == 1 else rows * 2


def of_a_corner(model: Any, rows: Any, n: int, past: int) -> Any:
    return rows * 3 if n == 1 and past == 0 else rows * 2


def of_a_weight(model: Any, rows: Any, n: int, past: int) -> Any:
    return rows + (model.second if n == 1 else model.first)


def of_a_flag(model: Any, rows: Any, n: int, past: int) -> Any:
    return rows, n == 1


def of_names(model: Any, rows: Any, n: int, past: int) -> Any:
    return {"one": rows} if n == 1 else {"many": rows}


def of_a_minimum(model: Any, rows: Any, n: int, past: int) -> Any:
    length = torch.sym_min(past + n, 30) if n == 1 else past + n
    return rows[:, -length:]


def of_a_window(model: Any, rows: Any, n: int, past: int) -> Any:
    hidden = torch.arange(past + n) >= (37 if n == 1 else 1 << 30)
    return rows.masked_fill(hidden[None, :, None], 0.0)


def of_values(model: Any, rows: Any, n: int, past: int) -> Any:
    if n == 1 and bool(rows.sum() > 1e9):
        return rows * 3
    return rows * 2


def of_a_number(model: Any, rows: Any, n: int, past: int) -> Any:
    return rows * (past + 1 if n == 1 else 6)


def of_a_shift(model: Any, rows: Any, n: int, past: int) -> Any:
    end = past + 5 if n == 1 else 2 * past
    return rows.sum(1) * end


def of_the_value_of_a_size(model: Any, rows: Any, n: int, past: int) -> Any:
    if n > 1:
        return rows * 2
    return rows * 3 if int(torch.tensor(past) // 2) > 12 else rows * 2


def of_parts(model: Any, rows: Any, n: int, past: int) -> Any:
    parts = rows.split(25, dim=1) if n == 1 else (rows,)
    return rows * 3 if len(parts) > 1 else rows * 2


def of_first_part(model: Any, rows: Any, n: int, past: int) -> Any:
    """Parts of 25 on each side, of which one side takes the first alone."""
    parts = rows.split(25, dim=1)
    return parts[0] if n == 1 else torch.cat(parts[:1], dim=1)


def of_a_stride(model: Any, rows: Any, n: int, past: int) -> Any:
    return rows * 3 if n == 1 and rows.stride(0) > 100 else rows * 2


def of_a_text(model: Any, rows: Any, n: int, past: int) -> Any:
    return rows * 3 if n == 1 and f"{past}" == "40" else rows * 2


def of_a_number_of_bits(model: Any, rows: Any, n: int, past: int) -> Any:
    return rows * 3 if n == 1 and math.log2(past + 1) > 5 else rows * 2


def of_an_index(model: Any, rows: Any, n: int, past: int) -> Any:
    table = [2] * 30 + [3] * 300
    return rows * (table[past] if n == 1 else 2)


def of_a_set(model: Any, rows: Any, n: int, past: int) -> Any:
    return rows * 3 if n == 1 and past in {40, 41} else rows * 2


def of_numpy(model: Any, rows: Any, n: int, past: int) -> Any:
    return rows * 3 if n == 1 and np.sqrt(past) > 6 else rows * 2


def of_a_catch(model: Any, rows: Any, n: int, past: int) -> Any:
    if n == 1:
        try:
            rows.expand(-1, past + 1, -1).reshape(-1)[:200].view(200)
        except RuntimeError:
            return rows * 2
        return rows * 3
    return rows * 2


def of_a_coarse_size(model: Any, rows: Any, n: int, past: int) -> Any:
    return rows * 3 if n == 1 and rows[:, ::30].shape[1] > 1 else rows * 2


def of_a_coarser_size(model: Any, rows: Any, n: int, past: int) -> Any:
    """One row of the coarse ones is read on each side."""
    one = rows[:, :1].shape[1]
    return rows * 3 if n == 1 and rows[:, ::300].shape[1] > one else rows * 2


@functools.lru_cache
def factor(past: int) -> int:
    return 3 if past == 40 else 2


def of_a_remembered_number(model: Any, rows: Any, n: int, past: int) -> Any:
    return rows * (factor(past) if n == 1 else 2)


def of_a_table(model: Any, rows: Any, n: int, past: int) -> Any:
    """What the table has for a number of rows is as large as the batch was."""
    if n > 1:
        return rows * 2
    if past not in model.table:
        model.table[past] = 2 if len(rows) < 3 else 3
    return rows * model.table[past]


SIDES = [
    of_a_remembered_number,
    of_a_coarse_size,
    of_a_coarser_size,
    of_the_value_of_a_size,
    of_parts,
    of_first_part,
    of_a_stride,
    of_a_text,
    of_a_number_of_bits,
    of_an_index,
    of_a_set,
    of_numpy,
    of_a_catch,
    of_one_row,
    of_a_corner,
    of_a_weight,
    of_a_flag,
    of_names,
    of_a_minimum,
    of_a_window,
    of_a_number,
    of_a_shift,
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("side", SIDES, ids=lambda side: side.__name__)
def test_that_another_side_is_never_taken_for_the_known_graph(side: Any) -> None:
    program, model, _ = exported(side, WATCHED)
    served = [call for call in EVERYDAY if is_right(program, model, call)]
    assert (5, 0) in served


def of_a_list_of_values(model: Any, rows: Any, n: int, past: int) -> Any:
    return rows * 3 if n == 1 and max(rows[0, 0].tolist()) > 1e9 else rows * 2


def of_an_array(model: Any, rows: Any, n: int, past: int) -> Any:
    return rows * 3 if n == 1 and rows.detach().numpy().max() > 1e9 else rows * 2


def of_all(model: Any, rows: Any, n: int, past: int) -> Any:
    return rows * 3 if n == 1 and not torch.all(rows < 1e9) else rows * 2


READING = [of_values, of_a_list_of_values, of_an_array, of_all]


@pytest.mark.parametrize("side", READING, ids=lambda side: side.__name__)
def test_that_a_side_that_reads_values_is_right_or_refused(side: Any) -> None:
    try:
        program, model, _ = exported(side, WATCHED)
    except onlooker.ExportError:
        return
    with torch.no_grad():
        large = torch.full((2, 1, 4), 1e12), torch.full((2, 3, 4), 1e12)
        expected = model(*large)
        try:
            got = program(*large)
        except onlooker.RejectedCallError:
            return
    torch.testing.assert_close(got, expected)


def of_gradients(model: Any, rows: Any, n: int, past: int) -> Any:
    return rows * 3 if n == 1 and torch.is_grad_enabled() else rows * 2


def test_that_a_side_that_asks_for_gradients_is_bound_by_that() -> None:
    program, model, _ = exported(of_gradients, WATCHED)
    arguments = torch.randn(3, 1, 4), torch.randn(3, 5, 4)
    expected = model(*arguments)
    try:
        got = program(*arguments)
    except onlooker.RejectedCallError:
        return
    torch.testing.assert_close(got, expected)


def test_that_weights_of_equal_values_stay_apart() -> None:
    """A program whose weights are changed is right on each side."""
    program, model, _ = exported(of_a_weight, WATCHED)
    with torch.no_grad():
        model.second += 1.0
    assert all(is_right(program, model, call) for call in [(5, 0), (1, 5)])


def counted(model: Any, rows: Any, n: int, past: int) -> Any:
    if n == 1:
        model.count += 1
    return rows * (2 if model.count < 3 else 5)


def test_that_a_side_that_fills_a_table_is_right_or_not_verified() -> None:
    try:
        program, model, _ = exported(of_a_table, WATCHED)
    except onlooker.ExportError:
        return
    model.table.clear()
    if program.verify():
        for call in EVERYDAY:
            is_right(program, model, call)


def test_that_a_side_that_counts_is_no_run_of_the_graph() -> None:
    with pytest.raises(onlooker.OnlookerError, match="state"):
        exported(counted, WATCHED)[0].verify(strict=True)


class KeepsLargeOnes(torch.nn.Module):
    """Puts rows of a batch beyond the watched ones into a list of its caller."""

    def forward(self, x: torch.Tensor, kept: dict[str, list[torch.Tensor]]) -> torch.Tensor:
        if x.shape[0] > 3:
            kept["rows"].append(x)
        return x * 2


def test_that_a_side_that_fills_a_list_of_its_caller_is_no_run_of_the_graph() -> None:
    model, observer = KeepsLargeOnes(), onlooker.InputObserver()
    with observer(model), torch.no_grad():
        for batch in (2, 3):
            model(torch.randn(batch, 4), {"rows": [torch.zeros(1)]})
    with pytest.raises(onlooker.RejectedCallError):
        observer.export()(torch.randn(4, 4), {"rows": [torch.zeros(1)]})


class WritesLargeOnes(torch.nn.Module):
    """Adds to an argument that it does not return, of batches beyond the watched ones alone."""

    def forward(self, x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > 3:
            total.add_(x.sum())
        return x * 2


def test_that_a_side_that_writes_to_an_argument_is_no_run_of_the_graph() -> None:
    model, observer = WritesLargeOnes(), onlooker.InputObserver()
    with observer(model), torch.no_grad():
        for batch in (2, 3):
            model(torch.randn(batch, 4), torch.zeros(1))
    program = observer.export()
    assert program.verify(), program.tally.summary
    with pytest.raises(onlooker.RejectedCallError, match=r"x\.shape\[0\] > 3"):
        program(torch.randn(4, 4), torch.zeros(1))


def of_many_pieces(model: Any, rows: Any, n: int, past: int) -> Any:
    return rows * 3 if n == 1 and len(rows.split(200, 1)) > 1 else rows * 2


def of_many_rows(model: Any, rows: Any, n: int, past: int) -> Any:
    return rows * 3 if n == 1 and len(rows.unbind(1)) > 200 else rows * 2


def of_short_floats(model: Any, rows: Any, n: int, past: int) -> Any:
    positions = torch.arange(rows.shape[1])
    if n == 1:
        positions = positions.to(torch.bfloat16).to(torch.int64)
    return rows * positions[:, None]


def of_remainders(model: Any, rows: Any, n: int, past: int) -> Any:
    positions = torch.arange(rows.shape[1])
    return rows * (positions.fmod(200) if n == 1 else positions)[:, None]


def of_a_slice(model: Any, rows: Any, n: int, past: int) -> Any:
    return (rows[:, :200] if n == 1 else rows) * 2


def of_a_slice_behind_an_ellipsis(model: Any, rows: Any, n: int, past: int) -> Any:
    return (rows[..., :200, :] if n == 1 else rows) * 2


def of_a_slice_of_a_new_axis(model: Any, rows: Any, n: int, past: int) -> Any:
    return (rows[None, :, :200] if n == 1 else rows[None])[0] * 2


def of_a_written_slice(model: Any, rows: Any, n: int, past: int) -> Any:
    found = rows * 2
    if n == 1:
        found[:, :200] = 1.5
    else:
        found[:] = 1.5
    return found


def of_bytes(model: Any, rows: Any, n: int, past: int) -> Any:
    return rows * 3 if n == 1 and rows.nbytes > 200 * 2 * 16 else rows * 2


def of_shared_memory(model: Any, rows: Any, n: int, past: int) -> Any:
    return rows * 3 if n == 1 and np.from_dlpack(rows.detach()).shape[1] > 200 else rows * 2


def of_what_is_not_zero(model: Any, rows: Any, n: int, past: int) -> Any:
    return rows * 3 if n == 1 and rows.detach().to_sparse()._nnz() > 200 * 8 else rows * 2


def of_nested_rows(model: Any, rows: Any, n: int, past: int) -> Any:
    if n > 1:
        return rows * 2
    nested = torch.nested.nested_tensor([rows.detach()[0]], layout=torch.strided)
    return rows * (3 if nested.size(0) > 300 else 2)


BEYOND = [
    of_what_is_not_zero,
    of_nested_rows,
    of_many_pieces,
    of_many_rows,
    of_short_floats,
    of_remainders,
    of_a_slice,
    of_a_slice_behind_an_ellipsis,
    of_a_slice_of_a_new_axis,
    of_a_written_slice,
    of_bytes,
    of_shared_memory,
]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("side", BEYOND, ids=lambda side: side.__name__)
@pytest.mark.one_in(3)
def test_that_a_side_is_right_or_refused_beyond_the_sizes_of_its_runs(side: Any) -> None:
    program, model, _ = exported(side, [(7, 0), (1, 7), (1, 8)])
    for call in [(1, 5), (1, 150), (1, 198), (1, 199), (1, 200), (1, 301), (1, 520)]:
        is_right(program, model, call)
