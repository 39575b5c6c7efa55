"""Lists with a result of each step that Python reads again: another loop goes over them, whatever the number of
steps; and no count of them is a number of the graph.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from onlooker import InputObserver, RejectedCallError
from onlooker.model_source.frames import at_lines
from slow_runs import runs

Tensor = torch.Tensor


class Cell(torch.nn.Module):
    """A cell of an LSTM, as torch's own example of a custom one has it."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs, self.hidden = torch.nn.Linear(4, 16), torch.nn.Linear(4, 16)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        h, c = state
        i, f, g, o = (self.inputs(x) + self.hidden(h)).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        return h, (h, c)


class Model(torch.nn.Module):
    """Calls a function with itself and a tensor of the shape (steps, batch, 4)."""

    def __init__(self, run: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.run, self.head, self.is_backwards = run, torch.nn.Linear(4, 3), True
        self.cells = torch.nn.ModuleList([Cell(), Cell()])

    def begin(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.zeros(x.shape[1], 4), torch.zeros(x.shape[1], 4)

    def forward(self, x: Tensor) -> Any:
        return self.run(self, x)


def by_the_number_of_parts(model: Model, x: Tensor) -> Any:
    inputs, outputs, state = x.unbind(0), [], model.begin(x)
    for i in range(len(inputs)):
        output, state = model.cells[0](inputs[i], state)
        outputs += [output]
    return torch.stack(outputs), state


def backwards(values: Sequence[Tensor]) -> Sequence[Tensor]:
    return values[::-1]


def number_of(values: Sequence[Tensor]) -> int:
    number = 0
    for _ in values:
        number += 1
    return number


def parts_backwards(model: Model, x: Tensor) -> Any:
    inputs, outputs, state = backwards(x.unbind(0)), [], model.begin(x)
    for i in range(len(inputs)):
        output, state = model.cells[0](inputs[i], state)
        outputs += [output]
    return torch.stack(backwards(outputs) if model.is_backwards else outputs), state


def some_of_the_parts(model: Model, x: Tensor) -> Any:
    outputs, state, parts = [], model.begin(x), x.unbind(0)
    for now, before in zip(parts[1:], parts[:-1], strict=True):
        output, state = model.cells[0](now - before, state)
        outputs.append(output)
    return torch.stack(outputs)


def states_in_a_list(model: Model, x: Tensor) -> Any:
    states, outputs = [model.begin(x) for _ in model.cells], []
    for t in range(x.shape[0]):
        value = x[t]
        for i, cell in enumerate(model.cells):
            value, states[i] = cell(value, states[i])
        outputs.append(value)
    return torch.stack(outputs), states


def a_list_per_layer(model: Model, x: Tensor) -> Any:
    values = [x[t] for t in range(x.shape[0])]
    for cell in model.cells:
        state, outputs = model.begin(x), []
        for value in values:
            value, state = cell(value, state)
            outputs.append(value)
        values = outputs
    return torch.stack(values)


def made_of_a_list(model: Model, x: Tensor) -> Any:
    outputs, state = [], model.begin(x)
    for value in x:
        value, state = model.cells[0](value, state)
        outputs.append(value)
    heads = [model.head(output) for output in outputs]
    others = list(map(model.head, outputs))
    return torch.stack([head.relu() for head in heads]), torch.stack(others)


def several_results(model: Model, x: Tensor) -> Any:
    states, state = [], model.begin(x)
    for value in x:
        _, state = model.cells[0](value, state)
        states.append(state)
    h, c = zip(*states, strict=True)
    return torch.stack(h) + torch.stack(c), torch.stack([one[0] * one[1] for one in states])


def several_results_apart(model: Model, x: Tensor) -> Any:
    states, state = [], model.begin(x)
    for value in x:
        _, state = model.cells[0](value, state)
        states.append(state)
    return torch.stack([h for h, _ in states]), torch.stack([c for _, c in states])


def counted_in_a_loop(model: Model, x: Tensor) -> Any:
    pairs = [(model.head(value), value.sum()) for value in x]
    count = 0
    for _, _ in pairs:
        count += 1
    return torch.stack([head for head, _ in pairs]) * count


def joined_in_a_branch(model: Model, x: Tensor) -> Any:
    heads, sums = [], []
    for value in x:
        heads.append(model.head(value))
        if model.is_backwards:
            sums.append(value.sum())
    heads = torch.stack(heads, 0).contiguous()
    if model.is_backwards:
        sums = torch.stack(sums)
    if model.is_backwards:
        sums = sums + 1
    return heads * 2, sums * 2


def with_nothing_beside(model: Model, x: Tensor) -> Any:
    """As attention without its weights has None for those of each part."""
    heads, weights = [], []
    for value in x:
        heads.append(model.head(value))
        weights.append(None)
    weights = None if weights[0] is None else tuple(weights)
    return torch.stack(heads), weights


def with_one_size_for_all(model: Model, x: Tensor) -> Any:
    """As models of images take all sizes of a batch from one tensor."""
    sizes = [(x.shape[1], x.shape[2])] * len(x)
    parts = [value[: size[0], : size[1] - 1] for value, size in zip(x, sizes, strict=False)]
    places = [torch.arange(part.shape[0]) for part in parts]
    return torch.cat([part.flatten() for part in parts]), torch.cat(places)


def that_begin_with_a_state(model: Model, x: Tensor) -> Any:
    state = torch.tanh(x[0])
    found = [(model.head(state), torch.zeros(x.shape[1], 4), state)]
    for value in x:
        state = torch.tanh(value + state * 0.5)
        found.append((model.head(state), state * 2, state))
    total = torch.zeros(1)
    for i, (head, double, _) in enumerate(found):
        total = total * 0.9 + head.sum() * i + double.sum()
    return total, torch.stack([head for head, _, _ in found])


def with_one_after_them(model: Model, x: Tensor) -> Any:
    state, found = torch.zeros(x.shape[1], 4), []
    for value in x:
        state = torch.tanh(value + state)
        found.append(state)
    found.append(state * 2)
    for state in reversed(found):
        x = x * 0.5 + state
    return x


def in_a_tuple(model: Model, x: Tensor) -> Any:
    state, found, others = torch.zeros(x.shape[1], 4), (), []
    for value in x:
        state = torch.tanh(value + state)
        found += (state,)
        others = others + [(model.head(state), state)]  # noqa: RUF005
    heads, states = zip(*others)  # noqa: B905
    return torch.stack(found), found[-1], torch.stack(heads), torch.cat(states), torch.stack(found[1:])


def in_a_dict(model: Model, x: Tensor) -> Any:
    state, found, heads = torch.zeros(x.shape[1], 4), {"states": [], "sum": 0.0}, collections.defaultdict(list)
    for value in x:
        state = torch.tanh(value + state)
        found["states"].append(state)
        found["sum"] = found["sum"] + state.sum()
        heads["heads"] += [model.head(state)]
        heads["last"].append(found["states"][-1] * 2)
    for name in heads:
        heads[name] = torch.stack(heads[name])
    return torch.stack(found["states"]), found["sum"], heads["heads"], number_of_parts(heads)


def number_of_parts(parts: Any) -> int:
    return len(parts)


def in_a_dict_of_lists(model: Model, x: Tensor) -> Any:
    state, found = torch.zeros(x.shape[1], 4), {"states": [], "heads": []}
    for value in x:
        state = torch.tanh(value + state)
        found["states"].append(state)
        found["heads"].append(model.head(state))
    return {name: torch.stack(values) for name, values in found.items()}


def if_there_are_any(model: Model, x: Tensor) -> Any:
    state, found = torch.zeros(x.shape[1], 4), []
    for value in x:
        state = torch.tanh(value + state)
        found.append(state)
    return torch.stack(found) if found else x


def from_a_state_of_another_shape(model: Model, x: Tensor) -> Any:
    state, found = torch.zeros(1, 1, 4).expand(x.shape[1], 1, -1), []
    for value in x:
        state = torch.tanh(value + state.reshape(-1, 4))
        found.append(state)
    return torch.stack(found)


def a_sum_in_place(model: Model, x: Tensor) -> Any:
    loss = 0
    for value in x:
        loss += model.head(value).sum(1)
    return loss


def of_closures(model: Model, x: Tensor) -> Any:
    state, found = torch.zeros(x.shape[1], 4), []
    for t in range(x.shape[0]):

        def field(y: Tensor, t: int = t) -> Tensor:
            return torch.tanh(y + x[t])

        def again(y: Tensor) -> Tensor:
            return field(y) * x[t]  # noqa: B023 a model may do so

        state = state + again(state + field(state))
        found.append(state)
    return torch.stack(found)


def of_a_function_that_reads_lengths(model: Model, x: Tensor) -> Any:
    state, found = torch.zeros(len(x[0]), 4), []
    for t in range(x.shape[0]):
        state = state + x[t] * number_of_rows(x[0])
        found.append(state)
    return torch.stack(found)


def number_of_rows(x: Tensor) -> int:
    return len(x)


SERVED = (
    that_begin_with_a_state,
    with_one_after_them,
    in_a_tuple,
    in_a_dict,
    in_a_dict_of_lists,
    of_closures,
    by_the_number_of_parts,
    parts_backwards,
    some_of_the_parts,
    states_in_a_list,
    a_list_per_layer,
    made_of_a_list,
    several_results,
    several_results_apart,
    counted_in_a_loop,
    joined_in_a_branch,
    with_nothing_beside,
    with_one_size_for_all,
)


def watched(run: Callable[[Any, Tensor], Any]) -> tuple[Model, Any]:
    model, observer = Model(run).eval(), InputObserver()
    with torch.no_grad(), observer(model):
        for steps, batch in ((3, 2), (5, 3)):
            model(torch.randn(steps, batch, 4))
    return model, observer.export()


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    "run",
    runs(
        SERVED,
        slow={
            that_begin_with_a_state,
            parts_backwards,
            several_results,
            several_results_apart,
            joined_in_a_branch,
            with_nothing_beside,
            with_one_size_for_all,
            with_one_after_them,
            in_a_dict_of_lists,
        },
    ),
)
def test_a_list_of_results_is_read_again(run: Callable[[Any, Tensor], Any]) -> None:
    model, program = watched(run)
    assert len(program.graphs) == 1
    for steps in (2, 3, 16, 40):
        x = torch.randn(steps, 2, 4)
        torch.testing.assert_close(program(x), model(x))
    assert program.verify().verified


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "run", [if_there_are_any, from_a_state_of_another_shape, of_a_function_that_reads_lengths, a_sum_in_place]
)
@pytest.mark.slow
def test_a_first_step_that_differs_is_served(run: Callable[[Any, Tensor], Any]) -> None:
    model, program = watched(run)
    for steps in (2, 4, 16):
        x = torch.randn(steps, 2, 4)
        torch.testing.assert_close(program(x), model(x))
    assert program.verify().verified


def rows_in_strides(model: Model, x: Tensor) -> Any:
    rows, count = x.flatten(0, 1), x.shape[1]
    return torch.stack([rows[i * count : (i + 1) * count].sum(0) for i in range(x.shape[0])])


def blocks_of_a_mask(model: Model, x: Tensor) -> Any:
    count, steps = x.shape[1], x.shape[0]
    mask = torch.ones(steps * count, steps * count)
    for i in range(steps):
        mask[i * count : (i + 1) * count, i * count : (i + 1) * count] = 0
    return mask @ x.flatten(0, 1)


def parts_of_one_size(model: Model, x: Tensor) -> Any:
    return torch.stack([part.sum(0) for part in x.flatten(0, 1).split([x.shape[1]] * x.shape[0])])


def blocks_one_after_another(lengths: list[Any], mask: Tensor) -> Tensor:
    start = 0
    for length in lengths:
        end = start + length
        mask[start:end, start:end] = 0
        start = end
    return mask


def blocks_of_equal_lengths(model: Model, x: Tensor) -> Any:
    count = x.shape[0] * x.shape[1]
    mask = blocks_one_after_another([x.shape[1]] * x.shape[0], torch.ones(count, count))
    return mask @ x.flatten(0, 1)


def parts_beside_equal_sizes(model: Model, x: Tensor) -> Any:
    rows, start, found = x.flatten(0, 1), 0, []
    for row, (count, _) in zip(x, [(x.shape[1], 4)] * x.shape[0], strict=True):
        found.append(rows[start : start + count].sum(0) + row[0])
        start += count
    return torch.stack(found)


def parts_with_their_numbers(model: Model, x: Tensor) -> Any:
    rows, start, found = x.flatten(0, 1), 0, []
    for number, (count, one) in enumerate([(x.shape[1], 1)] * x.shape[0]):
        found.append(rows[start : start + count].sum(0) * number)
        start += count - one + 1
    return torch.stack(found)


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    "run",
    [
        *(blocks_of_equal_lengths, rows_in_strides, blocks_of_a_mask, parts_of_one_size),
        *(parts_beside_equal_sizes, parts_with_their_numbers),
    ],
)
def test_strides_and_parts_that_are_sizes_are_served(run: Callable[[Any, Tensor], Any]) -> None:
    model, program = watched(run)
    for steps, batch in ((2, 2), (7, 4), (1, 3)):
        x = torch.randn(steps, batch, 4)
        torch.testing.assert_close(program(x), model(x))


def each_of_each_row(model: Model, x: Tensor) -> Any:
    return torch.stack([torch.stack([model.head(one).relu() for one in row]) for row in x])


def a_sum_of_each_row(model: Model, x: Tensor) -> Any:
    total: Any = 0
    for row in x:
        for one in row:
            total = model.head(one) - total
    return total


@pytest.mark.parametrize("run", [each_of_each_row, pytest.param(a_sum_of_each_row, marks=pytest.mark.slow)])
def test_a_loop_within_a_step_has_the_rows_of_the_step(run: Callable[[Any, Tensor], Any]) -> None:
    model, program = watched(run)
    for steps, batch in ((2, 2), (7, 2), (4, 3)):
        x = torch.randn(steps, batch, 4)
        torch.testing.assert_close(program(x), model(x))
    with pytest.raises(RejectedCallError, match="for one in row"):
        program(torch.randn(2, 6, 4))


def a_sum_of_ones(model: Model, x: Tensor) -> Any:
    return x * sum(1 for _ in range(x.shape[0]))


def a_sum_over_results(model: Model, x: Tensor) -> Any:
    heads = [model.head(value) for value in x]
    return torch.stack(heads) * sum(1 for _ in heads)


def with_one_more(model: Model, x: Tensor) -> Any:
    heads, count = [model.head(x[0])], 0
    for value in x:
        heads.append(model.head(value))
    for _ in heads:
        count += 1
    return torch.stack(heads) * count


def of_a_copy(model: Model, x: Tensor) -> Any:
    heads, count = [model.head(value) for value in x], 0
    others = heads[::-1]
    for _ in others:
        count += 1
    return torch.stack(heads) * count


def with_another_name_in_a_branch(model: Model, x: Tensor) -> Any:
    heads, count = [model.head(value) for value in x], 0
    if x.shape[1] > 50:
        others = []
    else:
        copies = list(heads)
        others = copies
    for _ in others:
        count += 1
    return torch.stack(heads) * count


def left_early(model: Model, x: Tensor) -> Any:
    heads, count = [model.head(value) for value in x], 0
    for _ in heads:
        count += 1
        if count == 4:
            break
    return torch.stack(heads) * count


def counted_by_another_function(model: Model, x: Tensor) -> Any:
    heads = [model.head(value) for value in x]
    return torch.stack(heads) * number_of(heads)


def of_constants(model: Model, x: Tensor) -> Any:
    heads = [model.head(value) for value in x]
    return torch.stack(heads) * torch.tensor([1 for _ in heads]).sum()


def in_an_inner_function(model: Model, x: Tensor) -> Any:
    heads, count = [], 0

    def step() -> None:
        for value in x:
            heads.append(model.head(value))

    step()
    for _ in heads:
        count += 1
    return torch.stack(heads) * count


def written_in_a_loop(model: Model, x: Tensor) -> Any:
    heads = []
    for value in x:
        heads.append(model.head(value))
    for head in heads:
        head.mul_(2)
    return torch.stack(heads)


def counted_by_another_name(model: Model, x: Tensor) -> Any:
    heads = []
    for value in x:
        heads.append(model.head(value))
    others = heads if x.shape[1] < 50 else torch.stack(heads)
    return torch.stack(heads) * (2 if others[8:] else 1)


def counted_when_the_loop_runs_again(model: Model, x: Tensor) -> Any:
    sums, heads = [], []
    for n in range(2):
        if heads[8:]:
            sums.append(heads[8])
        heads = []
        for value in x:
            heads.append(model.head(value) * n)
    return torch.stack(heads) * (1 + len(sums))


def counted_by_nothing(model: Model, x: Tensor) -> Any:
    heads, weights = [], []
    for value in x:
        heads.append(model.head(value))
        weights.append(None)
    weights = tuple(weights)
    return torch.stack(heads) * (2 if weights[8:] else 1)


def counted_over_nothing(model: Model, x: Tensor) -> Any:
    weights, count = [], 0
    for _ in x:
        weights.append(None)
    for _ in weights:
        count += 1
    return x * count


def counted_in_a_tuple(model: Model, x: Tensor) -> Any:
    found: tuple[Tensor, ...] = ()
    for value in x:
        found += (value * (2 if len(found) > 6 else 1),)
    return torch.stack(found)


def counted_from_the_third_on(model: Model, x: Tensor) -> Any:
    found: tuple[Tensor, ...] = ()
    for value in x:
        found += (model.head(value),)
    return torch.stack(found) * (2 if found[8:] else 1)


def counted_in_a_dict(model: Model, x: Tensor) -> Any:
    found: dict[str, list[Tensor]] = {"heads": []}
    for value in x:
        found["heads"].append(model.head(value))
    others = found
    return torch.stack(found["heads"]) * (2 if others["heads"][8:] else 1)


def counted_by_its_values(model: Model, x: Tensor) -> Any:
    found, many = {"heads": []}, 1
    for value in x:
        found["heads"].append(model.head(value))
    for values in found.values():
        many = 2 if values[8:] else many
    return torch.stack(found["heads"]) * many


def in_a_window(model: Model, x: Tensor) -> Any:
    state, window = x[0], (x[0], x[0], x[0])
    for value in x:
        state = torch.tanh(value + window[0])
        window = window[1:] + (state,)  # noqa: RUF005
    return state


COUNTED = (
    counted_in_a_dict,
    counted_by_its_values,
    counted_in_a_tuple,
    counted_from_the_third_on,
    in_a_window,
    counted_by_nothing,
    counted_over_nothing,
    counted_by_another_name,
    counted_when_the_loop_runs_again,
    a_sum_of_ones,
    a_sum_over_results,
    with_one_more,
    of_a_copy,
    with_another_name_in_a_branch,
    left_early,
    of_constants,
    counted_by_another_function,
    in_an_inner_function,
    written_in_a_loop,
)


@pytest.mark.one_in(12)
@pytest.mark.parametrize("run", COUNTED)
def test_a_count_of_results_is_right_or_refused(run: Callable[[Any, Tensor], Any]) -> None:
    model, program = watched(run)
    for steps in (3, 5, 16):
        x = torch.randn(steps, 3, 4)
        try:
            got = program(x)
        except RejectedCallError:
            assert steps == 16
            continue
        torch.testing.assert_close(got, model(x))


def test_lines_of_a_running_frame_are_told_until_it_is_enough() -> None:
    import sys

    before, seen = sys.gettrace(), []
    frame = sys._getframe()

    def act() -> bool:
        seen.append(frame.f_lineno)
        return len(seen) == 2

    at_lines(frame, act)
    first = frame.f_lineno
    second = frame.f_lineno
    assert seen == [first, second]
    assert sys.gettrace() is before
    end = at_lines(frame, act)
    end()
    n_seen = len(seen)
    assert frame.f_lineno
    assert len(seen) == n_seen
    assert sys.gettrace() is before
