"""Python loops over an axis are one graph for all numbers of steps, or are never wrong."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._higher_order_ops.scan import scan, scan_op
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

import onlooker
from onlooker import InputObserver, Program, RejectedCallError
from onlooker.lab.recorder import Recorder
from onlooker.proofs.same_run import Numbers
from onlooker.repairs.loops.rolled_loops import FEWEST_STEPS
from onlooker.repairs.loops.step_recorder import StepRecorder


def rand(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(sum(shape)))


class Loop(torch.nn.Module):
    def __init__(self, run: Callable[..., object]) -> None:
        super().__init__()
        self.run = run
        self.cell = torch.nn.GRUCell(3, 4)
        self.head = torch.nn.Linear(4, 2)
        self.layer = torch.nn.LSTM(3, 4)

    def forward(self, x: torch.Tensor) -> object:
        return self.run(self, x)


def cells(model: Loop, x: torch.Tensor) -> object:
    state, results = x.new_zeros(x.shape[0], 4), []
    for t in range(x.shape[1]):
        state = model.cell(x[:, t], state)
        results.append(model.head(state))
    return torch.stack(results, dim=1), state


def slow_path(model: Loop, x: torch.Tensor) -> object:
    a, b = x[:, :, :2].transpose(1, 2), x[:, :, 1:].transpose(1, 2)
    state, results = torch.zeros(x.shape[0], 2), []
    for index in range(x.shape[1]):
        state = a[:, :, index] * state + b[:, :, index]
        results.append((state * x[:, index, 0].unsqueeze(-1)).sum(-1))
    return torch.stack(results, dim=-1) + x[..., 0]


def backwards(model: Loop, x: torch.Tensor) -> object:
    state, results = x.new_zeros(x.shape[0], 4), []
    for t in range(x.size(1) - 1, -1, -1):
        state = model.cell(x[:, t, :], state)
        results.append(state)
    return torch.stack(results[::-1], dim=1)


def reversed_indices(model: Loop, x: torch.Tensor) -> object:
    state, results = x.new_zeros(x.shape[0], 4), []
    for t in reversed(range(x.size(1))):
        state = model.cell(x[..., t, :], state)
        results.insert(0, state)
    return torch.cat([state.unsqueeze(1), torch.stack(results, 1)], 1)


def from_the_end(model: Loop, x: torch.Tensor) -> object:
    n, state = x.size(1), x.new_zeros(x.shape[0], 4)
    for t in range(n):
        state = model.cell(x[:, n - 1 - t], state)
    return state


def written_rows(model: Loop, x: torch.Tensor) -> object:
    state = x.new_zeros(x.shape[0], 4)
    result = torch.zeros(x.shape[0], x.shape[1], 4)
    for t in range(x.shape[1]):
        state = model.cell(x[:, t : t + 1].squeeze(1), state)
        result[:, t] = state * 2
    return result + 1


def the_first_is_given(model: Loop, x: torch.Tensor) -> object:
    state = x[:, 0]
    results = [state]
    for t in range(1, x.shape[1]):
        state = state * x[:, t] + x[:, t - 1]
        results.append(state)
    return torch.stack(results, dim=1)


def two_layers(model: Loop, x: torch.Tensor) -> object:
    rows, state = x, x.new_zeros(x.shape[0], 3)
    for _ in range(2):
        results = []
        for t in range(rows.shape[1]):
            state = torch.tanh(rows[:, t] + state)
            results.append(state)
        rows = torch.stack(results, dim=1)
    return rows, state


def no_state(model: Loop, x: torch.Tensor) -> object:
    return torch.cat([x[:, t : t + 1] * 2 for t in range(x.shape[1])], dim=1)


def last_of_a_step(model: Loop, x: torch.Tensor) -> object:
    state = x.new_zeros(x.shape[0], 4)
    for t in range(x.shape[1]):
        state = model.cell(x[:, t], state)
        result = model.head(state)
    return result, len([state])


def mean_of_steps(model: Loop, x: torch.Tensor) -> object:
    results = [x[:, t] * x[:, t] for t in range(x.shape[1])]
    return torch.stack(results).sum(0) / len(results)


def in_place(model: Loop, x: torch.Tensor) -> object:
    state = x.new_zeros(x.shape[0], 3)
    results = []
    for t in range(x.shape[1]):
        new = x[:, t] * 2
        new += state
        state = new.tanh_()
        results.append(new)
    return torch.stack(results)


def parts_of_unbind(model: Loop, x: torch.Tensor) -> object:
    state, results = x.new_zeros(x.shape[0], 4), []
    for row in x.unbind(1):
        state = model.cell(row, state)
        results.append(state)
    return torch.stack(results, dim=1)


def rows_of_a_tensor(model: Loop, x: torch.Tensor) -> object:
    x, state = x.transpose(0, 1), x.new_zeros(x.shape[0], 4)
    result = torch.zeros(x.shape[0], x.shape[1], 4)
    for t, row in enumerate(x):
        state = model.cell(row, state)
        result[t] = state
    return result


def two_tensors(model: Loop, x: torch.Tensor) -> object:
    state, results = x.new_zeros(x.shape[0], 3), []
    for row, other in zip(x.unbind(1), (x * 2).tanh().unbind(1), strict=True):
        state = state * row + other
        results.append(state)
    return torch.stack(results, dim=1)


def parts_at_an_index(model: Loop, x: torch.Tensor) -> object:
    rows, state = torch.unbind(x, dim=1), x.new_zeros(x.shape[0], 3)
    for t in range(x.shape[1]):
        state = state * 0.5 + rows[t]
    return state


def without_gradients(model: Loop, x: torch.Tensor) -> object:
    state = x.new_zeros(x.shape[0], 4)
    for row in x.unbind(1):
        with torch.no_grad():
            state = model.cell(row, state)
    return state


def a_growing_state(model: Loop, x: torch.Tensor) -> object:
    state = x[:, :1]
    for t in range(x.shape[1]):
        state = torch.cat([state, x[:, t : t + 1]], 1)
    return state


def grown_from_nothing(model: Loop, x: torch.Tensor) -> object:
    state, rows = torch.zeros(x.shape[0], 4), torch.tensor([])
    backwards = torch.zeros(0, 4)
    for t in range(x.shape[1]):
        state = model.cell(x[:, t], state)
        rows = torch.cat((rows, state.unsqueeze(1), state.unsqueeze(1) * 2), dim=-2)
        backwards = torch.concat([state, backwards])
    return rows, backwards


def grown_from_none(model: Loop, x: torch.Tensor) -> object:
    state = rows = None
    for t in range(x.shape[1]):
        state = model.cell(x[:, t], state)
        rows = state.unsqueeze(1) if rows is None else torch.cat((rows, state.unsqueeze(1)), dim=1)
    return rows


def joined_to_the_first(model: Loop, x: torch.Tensor) -> object:
    rows, pairs = [x[:, :1]], [x[:, :1]]
    for t in range(1, x.shape[1]):
        rows.append((x[:, t] * 2).unsqueeze(1))
        pairs.append(torch.cat([x[:, t : t + 1]] * 2, 1))
    return torch.cat(rows, 1), torch.cat(pairs, 1)


def the_best_path(model: Loop, x: torch.Tensor) -> object:
    """Viterbi: the choices of each step, read from the last one on."""
    score, choices = x[:, 0], []
    for t in range(1, x.shape[1]):
        score, choice = (score.unsqueeze(2) + x[:, t].unsqueeze(1)).max(1)
        choices.append(choice)
    best = score.argmax(1)
    path = [best]
    for choice in reversed(choices):
        best = choice.gather(1, best.unsqueeze(1)).squeeze(1)
        path.append(best)
    path.reverse()
    return torch.stack(path, 1)


def parts_of_a_list(model: Loop, x: torch.Tensor) -> object:
    state, rows, others = x.new_zeros(x.shape[0], 4), [], []
    for row in x.unbind(1):
        state = model.cell(row, state)
        rows.append(state)
    for row in rows[::-1]:
        state = state * 0.5 + row
        others.append(state)
    return torch.stack(others, 1)


def tensors_of_the_index(model: Loop, x: torch.Tensor) -> object:
    rows = []
    for t in range(x.shape[1]):
        place = torch.tensor([t])
        halves = torch.tensor([t / 2, 3, 0.5]) + torch.tensor([t, 0.5, x[0, t, 0]])
        rows.append(x[:, t] * place + torch.tensor([[t, t + 1, 0]]) * halves)
    return torch.stack(rows, 1)


def parts_of_one_row(model: Loop, x: torch.Tensor) -> object:
    state, rows, others = x.new_zeros(x.shape[0], 4), [], []
    for part in x.split(1, dim=1):
        state = model.cell(part.squeeze(1), state)
        rows += [state.unsqueeze(1)]
    for t, part in enumerate(x.chunk(x.size(1), dim=1)):
        others.append(part * t)
    return torch.cat(rows, dim=1), torch.cat(others, 1)


def rows_added_to(model: Loop, x: torch.Tensor) -> object:
    """As the outputs of the encoder in PyTorch's tutorial of translation."""
    state, rows = x.new_zeros(x.shape[0], 4), torch.zeros(x.shape[0], x.shape[1], 4)
    parts = torch.ones_like(x)
    for t in range(x.shape[1]):
        state = model.cell(x[:, t], state)
        rows[:, t] += state
        parts[:, t, 1:] *= x[:, t, 1:]
    return rows, parts


def chunks(model: Loop, x: torch.Tensor) -> object:
    """Chunks of 4 steps, as the layers of a hybrid model have them: the last one is padded."""
    length = x.shape[1]
    padded = torch.nn.functional.pad(x @ model.head.weight[:, :3].T, (0, 0, 0, -length % 4))
    parts = padded.reshape(x.shape[0], -1, 4, 2)
    state, result = x.new_zeros(x.shape[0], 2), torch.zeros_like(parts)
    for i in range((length + -length % 4) // 4):
        new = parts[:, i] + state.unsqueeze(1)
        result[:, i] = new.cumsum(1)
        state = state * 0.5 + new.sum(1)
    return result.reshape(x.shape[0], -1, 2)[:, :length], state


def sums_of_parts(model: Loop, x: torch.Tensor) -> object:
    return sum(x.unbind(1)), sum((x > 0.5).unbind(1))


def from_zero(model: Loop, x: torch.Tensor) -> object:
    total, squares = 0.0, 0
    for part in x.unbind(1):
        total = total + torch.tanh(part)
        squares = part * part + squares
    return total, squares


ROLLED = {
    run.__name__: run
    for run in (
        cells,
        slow_path,
        backwards,
        reversed_indices,
        from_the_end,
        written_rows,
        the_first_is_given,
        two_layers,
        no_state,
        last_of_a_step,
        mean_of_steps,
        in_place,
        parts_of_unbind,
        rows_of_a_tensor,
        two_tensors,
        parts_at_an_index,
        chunks,
        sums_of_parts,
        from_zero,
        without_gradients,
        a_growing_state,
        grown_from_nothing,
        grown_from_none,
        joined_to_the_first,
        the_best_path,
        parts_of_a_list,
        tensors_of_the_index,
        parts_of_one_row,
        rows_added_to,
    )
}


def exported(model: torch.nn.Module, length: int = 5) -> Program:
    observer = InputObserver()
    with observer(model), torch.no_grad():
        model(rand(2, length, 3))
    return observer.export()


def leaves(result: object) -> list[object]:
    return list(result) if isinstance(result, tuple) else [result]


#: each takes ten seconds, and is much like one that stays
SLOW = {"written_rows", "from_the_end", "backwards", "the_first_is_given", "reversed_indices", "parts_of_unbind"}
SLOW |= {"rows_added_to"}


#: a graph of its own has a call with one step, or one row
OF_TWO = (the_first_is_given, grown_from_none, joined_to_the_first, the_best_path, rows_added_to)


@pytest.mark.parametrize(
    "run",
    [pytest.param(run, marks=pytest.mark.slow if name in SLOW else ()) for name, run in ROLLED.items()],
    ids=ROLLED,
)
@pytest.mark.one_in(14)
def test_a_loop_over_steps_is_one_graph_for_all_lengths(run: Callable[..., object]) -> None:
    model = Loop(run).eval()
    program = exported(model)
    assert len(program.graphs) == (2 if run in OF_TWO else 1)
    for batch, n in ((3, 1), (1, 1), (3, 2), (1, 3), (3, 9), (3, 40)):
        with torch.no_grad():
            expected = model(rand(batch, n, 3))
        for got, wanted in zip(leaves(program(rand(batch, n, 3))), leaves(expected), strict=True):
            torch.testing.assert_close(got, wanted, rtol=0, atol=1e-6)


def added_in_place(model: Loop, x: torch.Tensor) -> object:
    """The tensor is read after the loop by the names that it had before."""
    total = x[:, 0].clone()
    part = total[:, :1]
    for t in range(1, x.shape[1]):
        total += torch.tanh(total * 0.5) * x[:, t]
        total.mul_(0.9)
    total += 1
    return total, part, x


def the_largest_in_place(model: Loop, x: torch.Tensor) -> object:
    best, rows = torch.zeros(x.shape[0], 3), []
    for row in x.unbind(1):
        best[:] = torch.maximum(best, row)
        rows.append(best.sum(-1))
    return torch.stack(rows, 1), best


def two_loops_in_place(model: Loop, x: torch.Tensor) -> object:
    total = torch.zeros(x.shape[0], 3)
    for t in range(x.shape[1]):
        total += x[:, t]
    for t in range(x.shape[1]):
        total -= x[:, t] * total
    return total


@pytest.mark.parametrize(
    "run", [added_in_place, the_largest_in_place, pytest.param(two_loops_in_place, marks=pytest.mark.slow)]
)
def test_steps_write_to_a_state(run: Callable[..., object]) -> None:
    model = Loop(run).eval()
    program = exported(model)
    assert program.verify().verified
    for batch, n in ((3, 2), (1, 3), (3, 40)):
        with torch.no_grad():
            expected = model(rand(batch, n, 3))
        for got, wanted in zip(leaves(program(rand(batch, n, 3))), leaves(expected), strict=True):
            torch.testing.assert_close(got, wanted)


def a_view_before(model: Loop, x: torch.Tensor) -> object:
    total = torch.zeros(x.shape[0], 3)
    for t in range(x.shape[1]):
        column = total[:, 0]
        total += x[:, t]
        total = total * column.unsqueeze(1)
    return total


def a_view_from_outside(model: Loop, x: torch.Tensor) -> object:
    total = torch.zeros(x.shape[0], 3)
    column = total[:, :1]
    for t in range(x.shape[1]):
        total += x[:, t] + column
    return total


def views_in_a_list(model: Loop, x: torch.Tensor) -> object:
    total, rows = torch.zeros(x.shape[0], 3), []
    for t in range(x.shape[1]):
        total += x[:, t]
        rows.append(total[:, 0])
    return torch.stack(rows, 1)


def the_state_in_a_list(model: Loop, x: torch.Tensor) -> object:
    total, rows = torch.zeros(x.shape[0], 3), []
    for t in range(x.shape[1]):
        total += x[:, t]
        rows.append(total)
    return torch.stack(rows, 1)


def the_state_before(model: Loop, x: torch.Tensor) -> object:
    total = torch.zeros(x.shape[0], 3)
    for t in range(x.shape[1]):
        before = total
        total = total + x[:, t]
        before += 1
    return total + before


@pytest.mark.parametrize(
    "run", [a_view_before, a_view_from_outside, views_in_a_list, the_state_in_a_list, the_state_before]
)
@pytest.mark.one_in(2)
def test_a_written_state_that_is_read_otherwise_is_never_wrong(run: Callable[..., object]) -> None:
    model = Loop(run).eval()
    program = exported(model)
    for batch, n in ((2, 5), (3, 2), (3, 40)):
        with contextlib.suppress(RejectedCallError), torch.no_grad():
            got = program(rand(batch, n, 3))
            for one, wanted in zip(leaves(got), leaves(model(rand(batch, n, 3))), strict=True):
                torch.testing.assert_close(one, wanted)


class WeightsInADict(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.rand(3))
        self.weights = {"scale": self.scale}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state, rows = torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            state = torch.tanh(state + x[:, t] * self.weights["scale"])
            rows.append(state)
        return torch.stack(rows, 1)


def test_steps_read_a_weight_that_is_kept_in_a_plain_dict() -> None:
    model = WeightsInADict().eval()
    program = exported(model)
    assert len(program.graphs) == 1
    assert program.verify().verified
    for shape in ((1, 1, 3), (3, 9, 3)):
        torch.testing.assert_close(program(rand(*shape)), model(rand(*shape)))


def squeezed(model: Loop, x: torch.Tensor) -> object:
    state = x.new_zeros(x.shape[0], 3)
    for t in range(x.shape[1]):
        state = (state + x[:, t]).squeeze(0).cumsum(0).reshape(x.shape[0], 3)
    return state


def test_a_step_that_differs_for_one_row_is_a_graph_of_its_own() -> None:
    """Of one row ``cumsum(0)`` sums the features."""
    model = Loop(squeezed).eval()
    program = exported(model)
    assert len(program.graphs) == 2
    assert program.verify().verified
    for batch, n in ((1, 1), (1, 9), (3, 1), (3, 9)):
        torch.testing.assert_close(program(rand(batch, n, 3)), model(rand(batch, n, 3)))


def by_the_index(model: Loop, x: torch.Tensor) -> object:
    return torch.stack([x[:, t] * (2 if t == 11 else 1) for t in range(x.shape[1])])


def every_other(model: Loop, x: torch.Tensor) -> object:
    return torch.stack([x[:, t] * 2**t for t in range(x.shape[1])])


def by_a_count(model: Loop, x: torch.Tensor) -> object:
    state, left = x[:, 0] * 0, 10
    for t in range(x.shape[1]):
        left = left - 1
        state = state * 0.5 + x[:, t] if left > 0 else state + 1
    return state


def two_steps_before(model: Loop, x: torch.Tensor) -> object:
    first = second = x[:, 0] * 0
    for t in range(x.shape[1]):
        first, second = second, first * 0.5 + second + x[:, t]
    return first + second


def its_own_rows(model: Loop, x: torch.Tensor) -> object:
    result = torch.zeros(x.shape[0], x.shape[1] + 1, 3)
    for t in range(x.shape[1]):
        result[:, t + 1] = result[:, t] * 0.5 + x[:, t]
    return result


def written_again(model: Loop, x: torch.Tensor) -> object:
    result = torch.zeros_like(x)
    for t in range(x.shape[1]):
        row = x[:, t] * 2
        result[:, t] = row
        row += 1
    return result


def a_step_is_read(model: Loop, x: torch.Tensor) -> object:
    results = [x[:, t] * 2 for t in range(x.shape[1])]
    return results[1] + results[-1]


def the_input_is_written(model: Loop, x: torch.Tensor) -> object:
    x = x.clone()
    for t in range(x.shape[1]):
        row = x[:, t]
        row += 1
    return x


def it_ends_early(model: Loop, x: torch.Tensor) -> object:
    for t in range(x.shape[1]):
        result = x[:, t] * 2
        break
    return result


def a_growing_state_counts(model: Loop, x: torch.Tensor) -> object:
    state, rows = x[:, 0], x[:, :1]
    for t in range(x.shape[1]):
        state = state * 0 if rows.shape[1] > 8 else state * 0.5 + x[:, t]
        rows = torch.cat([rows, state.unsqueeze(1)], 1)
    return rows


def a_growing_state_is_read(model: Loop, x: torch.Tensor) -> object:
    rows = x[:, :1]
    for t in range(x.shape[1]):
        rows = torch.cat([rows, (x[:, t] + rows[:, -1]).unsqueeze(1)], 1)
    return rows


def a_growing_state_is_kept(model: Loop, x: torch.Tensor) -> object:
    rows, kept = x[:, :1], []
    for t in range(x.shape[1]):
        rows = torch.cat([rows, x[:, t : t + 1]], 1)
        kept.append(rows)
    return kept[-1], kept[0]


def another_first_step(model: Loop, x: torch.Tensor) -> object:
    state = None
    for t in range(x.shape[1]):
        state = x[:, t] if state is None else state * 0.5 + x[:, t]
    return state


def scaled_from_zero(model: Loop, x: torch.Tensor) -> object:
    state = 0
    for t in range(x.shape[1]):
        state = (state + x[:, t]) * 0.5
    return state


def a_product_from_zero(model: Loop, x: torch.Tensor) -> object:
    total = state = 0
    for t in range(x.shape[1]):
        total = total + x[:, t] * state
        state = x[:, t]
    return total


def a_caught_error(model: Loop, x: torch.Tensor) -> object:
    try:
        return by_the_index(model, x)
    except Exception:
        return x


OTHERS = {
    run.__name__: run
    for run in (
        a_step_is_read,
        every_other,
        by_a_count,
        two_steps_before,
        its_own_rows,
        written_again,
        by_the_index,
        the_input_is_written,
        it_ends_early,
        a_growing_state_counts,
        a_growing_state_is_read,
        a_growing_state_is_kept,
        another_first_step,
        scaled_from_zero,
        a_product_from_zero,
        a_caught_error,
    )
}


@pytest.mark.one_in(12)
@pytest.mark.parametrize("run", OTHERS.values(), ids=OTHERS)
def test_a_loop_that_is_no_scan_is_never_wrong(run: Callable[..., object]) -> None:
    model = Loop(run).eval()
    program = exported(model)
    served = 0
    for n in (1, 3, 5, 9, 14):
        try:
            got = program(rand(2, n, 3))
        except Exception:  # a graph per length, and none for this one
            continue
        served += 1
        torch.testing.assert_close(got, model(rand(2, n, 3)), rtol=0, atol=1e-6)
    assert served


def it_ends_by_values(model: Loop, x: torch.Tensor) -> object:
    state, rows = torch.zeros(x.shape[0], 4), []
    for t in range(x.shape[1]):
        state = model.cell(x[:, t], state)
        rows.append(state)
        if (x[:, t] > 3).any():
            break
    return torch.stack(rows, 1)


def another_first_way(model: Loop, x: torch.Tensor) -> object:
    state = torch.zeros(x.shape[0], 3)
    for row in x.unbind(1):
        state = row if torch.all(state == 0) else torch.maximum(row, state * 0.5)
    return state


def two_ways(model: Loop, x: torch.Tensor) -> object:
    for weight in (1, -1):
        rows = []
        for row in x.unbind(1):
            rows.append(row * 2 if (weight * row).sum() > 0 else row + 1)
        x = torch.stack(rows, 1)
    return x


def a_distribution_of_one_number(model: Loop, x: torch.Tensor) -> object:
    """As the policy of PyTorch's example of REINFORCE: its batch has the shape ()."""
    rows = []
    for row in x[0]:
        chances = torch.distributions.Categorical(row.softmax(0))
        rows.append(chances.log_prob(torch.tensor(1)))
    return torch.stack(rows)


def a_checked_distribution(model: Loop, x: torch.Tensor) -> object:
    state, rows = torch.zeros(x.shape[0], 4), []
    for row in x.unbind(1):
        state = model.cell(row, state)
        rows.append(torch.distributions.Normal(state, state.exp()).log_prob(state * 0.5))
    return torch.stack(rows, 1)


def a_layer_in_a_step(model: Loop, x: torch.Tensor) -> object:
    state, rows = None, []
    for row in x.unbind(1):
        result, state = model.layer(row.unsqueeze(0), state)
        rows += [result]
    rows = torch.flatten(torch.cat(rows), 0, 1)
    return rows * 2 if (rows.abs() > 2).any() else rows


def decided_after_it(model: Loop, x: torch.Tensor) -> object:
    state = torch.zeros(x.shape[0], 4)
    for row in x.unbind(1):
        state = model.cell(row, state)
    return state * 2 if (state.abs() > 2).any() else state


WAYS = {
    run.__name__: run
    for run in (
        two_ways,
        another_first_way,
        a_checked_distribution,
        a_distribution_of_one_number,
        a_layer_in_a_step,
        decided_after_it,
        it_ends_by_values,
    )
}


@functools.cache
def exported_way(run: Callable[..., object]) -> tuple[Loop, Program]:
    model = Loop(run).eval()
    return model, exported(model)


@pytest.mark.one_in(16)
@pytest.mark.parametrize("run", WAYS.values(), ids=WAYS)
@pytest.mark.slow
def test_steps_that_decide_by_values_are_one_scan_of_the_way_that_was_watched(run: Callable[..., object]) -> None:
    model, program = exported_way(run)
    assert any("is a scan of torch" in note for note in program.graphs[0].notes)
    for batch, n in ((3, 3), (2, 9), (3, 40)):
        with torch.no_grad():
            torch.testing.assert_close(program(rand(batch, n, 3)), model(rand(batch, n, 3)), rtol=0, atol=1e-6)


@pytest.mark.parametrize("run", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("step", [0, 4, -1])
@pytest.mark.parametrize("value", [5.0, -5.0, 0.0, float("nan")])
@pytest.mark.one_in(84)
def test_a_step_that_goes_another_way_is_never_wrong(run: Callable[..., object], step: int, value: float) -> None:
    model, program = exported_way(run)
    x = rand(2, 9, 3)
    x[:, step] = value
    try:
        expected = model(x)
    except ValueError:  # of the distribution
        with pytest.raises(RejectedCallError):
            program(x)
        return
    with contextlib.suppress(RejectedCallError):
        torch.testing.assert_close(program(x), expected, rtol=0, atol=1e-6, equal_nan=True)


def another_third_way(model: Loop, x: torch.Tensor) -> object:
    rows = []
    for t, row in enumerate(x.unbind(1)):
        rows.append(row * 2 if (row * (t - 2) ** 2).sum() > 0 else row + 1)
    return torch.stack(rows, 1)


@pytest.mark.slow
def test_steps_of_the_watched_call_that_go_two_ways_are_no_scan() -> None:
    model = Loop(another_third_way).eval()
    program = exported(model)
    assert not any("is a scan of torch" in note for note in program.graphs[0].notes)
    torch.testing.assert_close(program(rand(3, 5, 3)), model(rand(3, 5, 3)))


def test_a_loop_that_is_no_scan_is_named_with_the_reason() -> None:
    program = exported(Loop(every_other))
    (note,) = [note for note in program.graphs[0].notes if "loop" in note]
    assert "test_rolled_loops.py" in note
    assert "computes a number from its index" in note


@pytest.mark.slow
def test_a_scan_is_saved_and_loaded(tmp_path: Path) -> None:
    model = Loop(cells).eval()
    exported(model).save(tmp_path / "program")
    program = onlooker.load(tmp_path / "program")
    for got, wanted in zip(program(rand(3, 9, 3)), model(rand(3, 9, 3)), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-6)


def test_a_scan_is_one_of_onnx() -> None:
    model = Loop(slow_path).eval()
    program = exported(model).to("onnx")
    assert program.verify().verified
    for n in (2, 9, 40):
        torch.testing.assert_close(program(rand(3, n, 3)), model(rand(3, n, 3)), rtol=0, atol=1e-5)


class Experts(torch.nn.Module):
    """Visits the expert of each group of rows: how many steps there are hangs on values."""

    def __init__(self) -> None:
        super().__init__()
        self.router = torch.nn.Linear(3, 4)
        self.experts = torch.nn.ModuleList(torch.nn.Linear(3, 3) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen, result = self.router(x).argmax(-1), torch.zeros_like(x)
        for expert in torch.unique_consecutive(chosen):
            rows = torch.where(chosen == expert)[0]
            result.index_add_(0, rows, self.experts[int(expert)](x[rows]))
        return result


@pytest.mark.slow
def test_a_loop_over_values_serves_its_number_of_steps_alone_and_names_the_line() -> None:
    observer = InputObserver()
    torch.manual_seed(0)
    model = Experts().eval()
    with observer(model), torch.no_grad():
        model(rand(6, 3))
    program = observer.export()
    assert not program.verify().verified
    assert "for expert in torch.unique_consecutive(chosen):" in " ".join(program.graphs[0].notes)
    served = 0
    for seed in range(60):
        x = torch.randn(2 + seed % 7, 3, generator=torch.Generator().manual_seed(seed))
        with torch.no_grad(), contextlib.suppress(RejectedCallError):
            torch.testing.assert_close(program(x), model(x))
            served += 1
    assert served


def test_torch_makes_no_scan_whose_number_of_steps_is_a_value() -> None:
    class Found(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            def step(state: torch.Tensor, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
                return state + row, row.clone()

            return scan(step, x[0] * 0, x[x.sum(1).nonzero()[:, 0]])[0]

    with pytest.raises(GuardOnDataDependentSymNode):
        torch.export.export(Found(), (rand(4, 3),), strict=False)


class HiddenState(torch.nn.Module):
    """Python counts steps where no name of the loop's frame shows it, and another step comes late."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layer, self.kind, self.count, self.box = torch.nn.Linear(4, 4), kind, 0, {"n": 0}

    def counted(self, seen: set[int], ticks: Iterator[int], past: list[torch.Tensor]) -> int:
        if self.kind == "an attribute":
            self.count += 1
            return self.count
        if self.kind == "a container":
            self.box["n"] = self.box["n"] + 1
            return self.box["n"]
        if self.kind == "a set":
            seen.add(len(seen))
            return len(seen)
        return next(ticks) if self.kind == "an iterator" else len(past)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count, self.box["n"] = 0, 0
        state, seen, ticks, past = x[:, 0] * 0, set[int](), itertools.count(), list[torch.Tensor]()
        for t in range(x.shape[1]):
            state = torch.tanh(self.layer(x[:, t]) + state)
            if self.counted(seen, ticks, past) == 20:
                state = 3 * state
            past.append(state)
        return torch.stack(past, 1)


@pytest.mark.parametrize("kind", ["an attribute", "a container", "a set", "an iterator", "a list"])
@pytest.mark.one_in(2)
def test_what_python_counts_elsewhere_makes_no_wrong_step(kind: str) -> None:
    torch.manual_seed(0)
    model, observer = HiddenState(kind).eval(), InputObserver()
    with torch.no_grad(), observer(model):
        for batch, length in ((2, 5), (3, 7)):
            model(torch.randn(batch, length, 4))
    program = observer.export()
    for length in (5, 7, 19, 20, 21, 22, 30):
        x = torch.randn(2, length, 4)
        with contextlib.suppress(RejectedCallError):
            torch.testing.assert_close(program(x), model(x))


@pytest.mark.slow
def test_no_more_steps_are_served_than_were_compared() -> None:
    model = Loop(ROLLED["cells"]).eval()
    program = exported(model)
    x = rand(2, FEWEST_STEPS, 3)
    torch.testing.assert_close(program(x), model(x))
    with pytest.raises(RejectedCallError, match=f"<= {FEWEST_STEPS}"):
        program(rand(2, FEWEST_STEPS + 1, 3))


def numbers(function: Callable[..., object], *inputs: torch.Tensor) -> Callable[[Numbers], list[object]]:
    with Recorder() as recorder:
        outputs = function(*inputs)
    return lambda known: known.of(recorder, inputs, leaves(outputs))


def summed(x: torch.Tensor, weight: torch.Tensor, *, factor: float = 2.0, is_last: bool = True) -> object:
    def step(state: torch.Tensor, row: torch.Tensor, *stays: torch.Tensor) -> list[torch.Tensor]:
        state = state * factor + row * stays[-1 if is_last else 0]
        return [state, state + 1]

    stays = (x[0] * 3, weight) if is_last else (weight,)
    return tuple(scan_op(step, [torch.zeros(3)], [x], stays))


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (summed, True),
        (lambda x, weight: summed(x, weight, is_last=False), True),
        (lambda x, weight: summed(x, weight, factor=3.0), False),
        (lambda x, weight: summed(x, weight * 2), False),
        (lambda x, weight: summed(x * 2, weight), False),
    ],
    ids=["itself", "with another place of what stays", "of another step", "of another weight", "of other rows"],
)
def test_scans_of_two_runs_are_equal_where_their_steps_are(other: Callable[..., object], same: bool) -> None:
    x, weight, known = rand(5, 3), rand(3), Numbers()
    found = [numbers(function, x, weight)(known) for function in (summed, other)]
    assert (found[0] == found[1]) is same


def noisy(state: torch.Tensor, row: torch.Tensor) -> list[torch.Tensor]:
    return [state + torch.rand(3), row.clone()]


def growing(state: torch.Tensor, row: torch.Tensor) -> list[torch.Tensor]:
    return [state + row, row.clone()]


@pytest.mark.parametrize(("step", "begun"), [(noisy, torch.zeros(3)), (growing, torch.zeros(1))])
def test_a_scan_whose_steps_are_not_alike_is_not_compared(step: Callable[..., object], begun: torch.Tensor) -> None:
    with pytest.raises(NotImplementedError):
        numbers(lambda x: tuple(scan_op(step, [begun], [x], ())), rand(5, 3))


class FromNone(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = torch.nn.LSTMCell(3, 4)

    def forward(self, x: torch.Tensor, state: Any = None) -> torch.Tensor:
        rows = []
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)
            rows.append(state[0])
        return torch.stack(rows, 1)


def test_steps_after_a_longer_first_one_compute_no_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    computed, repeated = [], StepRecorder._repeated

    def noted(self: StepRecorder, loop: Any, operation: Any) -> Any:
        found = repeated(self, loop, operation)
        if found is None:
            computed.append(operation)
        return found

    monkeypatch.setattr(StepRecorder, "_repeated", noted)
    exported(FromNone().eval())
    assert 0 < len(computed) < 60


class ChoosesByBytes(torch.nn.Module):
    """Steps choose by a mask of bytes, as those of pytorch-crf."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(x.shape[:2], dtype=torch.uint8)
        mask[:, -1] = 0
        state = torch.zeros(x.shape[0], x.shape[2])
        for t in range(x.shape[1]):
            following = torch.tanh(state + x[:, t])
            state = torch.where(mask[:, t].unsqueeze(1), following, state)
            state = following.where(mask[:, 0].unsqueeze(1), state)
        return state


@pytest.mark.filterwarnings("ignore:.*uint8 condition tensor")
@pytest.mark.slow
def test_steps_that_choose_by_bytes_are_a_scan() -> None:
    model, observer = ChoosesByBytes(), InputObserver()
    with observer(model), torch.no_grad():
        for rows, length in ((2, 5), (3, 7)):
            model(torch.randn(rows, length, 4))
    program = observer.export()
    assert program.verify().verified, program.report
    for length in (1, 3, 40):
        x = torch.randn(2, length, 4)
        torch.testing.assert_close(program(x), model(x))
