"""Branches on values that are traced on one side: what they do counts where their test says so."""

from __future__ import annotations

import contextlib
import io
import itertools
import warnings
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from onlooker import InputObserver, OnlookerError, Program, RejectedCallError

Run = Callable[[Any, torch.Tensor], Any]


class Model(nn.Module):
    """A router and experts, or whatever else ``run`` makes of them."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.run, self.gate = run, nn.Linear(8, 4)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(4))
        self.register_buffer("hits", torch.zeros(4))
        self.seen, self.flag, self.last = [0], False, torch.zeros(8)

    def forward(self, x: torch.Tensor) -> Any:
        return self.run(self, x)

    def routed(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        weights, chosen = torch.topk(self.gate(x).softmax(-1), 2)
        return weights, chosen, torch.zeros_like(x)


def skipped(self: Model, x: torch.Tensor) -> Any:
    weights, chosen, out = self.routed(x)
    for n, expert in enumerate(self.experts):
        rows, place = torch.where(chosen == n)
        if rows.numel() == 0:
            continue
        out[rows] += weights[rows, place, None] * expert(x[rows])
    return out


def skipped_by_length(self: Model, x: torch.Tensor) -> Any:
    weights, chosen, out = self.routed(x)
    for n, expert in enumerate(self.experts):
        rows, place = torch.where(chosen == n)
        if not len(rows):
            continue
        found = expert(x[rows]) * weights[rows, place, None]
        out.index_add_(0, rows, found)
    return out


def added_to_a_name(self: Model, x: torch.Tensor) -> Any:
    weights, chosen, out = self.routed(x)
    for n, expert in enumerate(self.experts):
        rows = (chosen == n).any(-1).nonzero().squeeze(-1)
        if rows.shape[0] > 0:
            out = out.index_add(0, rows, expert(x[rows]) * weights.amax(-1)[rows, None])
    return out


def any_of_a_mask(self: Model, x: torch.Tensor) -> Any:
    weights, chosen, out = self.routed(x)
    for n, expert in enumerate(self.experts):
        mask = chosen == n
        if mask.any():
            rows = mask.any(-1)
            share = (weights * mask).sum(-1)[rows]
            out[rows] += share[:, None] * expert(x[rows])
    return out


def in_a_function(self: Model, x: torch.Tensor) -> Any:
    weights, chosen, out = self.routed(x)

    def add(n: int) -> None:
        rows, place = torch.where(chosen == n)
        if rows.numel() > 0:
            out[rows] += weights[rows, place, None] * self.experts[n](x[rows])

    for n in range(4):
        add(n)
    return out


def a_name_is_chosen(self: Model, x: torch.Tensor) -> Any:
    y = self.gate(x)
    if y.sum() > 0:
        y = y * 2
        y = y + 1
    return y, y.relu() * 3


def one_part_in_another(self: Model, x: torch.Tensor) -> Any:
    y, total = self.gate(x), torch.zeros(())
    if y.sum() > 0:
        y = y * 2
        if y.max() > 1:
            total = total + y.mean()
        y = y - total
    return y + total


def written_in_place(self: Model, x: torch.Tensor) -> Any:
    y = self.gate(x)
    if y.sum() > 0:
        y[:, :2].mul_(3)
        y += 1
    return y


def step_after_step(self: Model, x: torch.Tensor) -> Any:
    y = self.gate(x)
    for n in range(3):
        if y.mean() > 0.1 * n:
            continue
        y = y * 1.5 + 0.2
    return y


def sorted_and_counted(self: Model, x: torch.Tensor) -> Any:
    weights, chosen, _ = self.routed(x)
    order = chosen.view(-1).argsort()
    rows, begin = x[order // 2], 0
    found: list[torch.Tensor] = []
    for n, count in enumerate(chosen.view(-1).bincount(minlength=4).cpu().numpy()):
        end = begin + count
        if count == 0:
            continue
        found.append(self.experts[n](rows[begin:end]))
        begin = end
    joined = torch.cat(found, dim=0) if len(found) else rows.new_empty(0)
    out = torch.empty_like(joined)
    out[order] = joined
    return (out.view(*chosen.shape, -1) * weights[..., None]).sum(1)


def counted_in_a_list(self: Model, x: torch.Tensor) -> Any:
    weights, chosen, out = self.routed(x)
    counts = torch.bincount(chosen.flatten(), minlength=4).tolist()
    for n in range(4):
        count = counts[n]
        if count == 0:
            continue
        rows, place = torch.where(chosen == n)
        out[rows] += weights[rows, place, None] * self.experts[n](x[rows])
    return out


SERVED = (
    *(added_to_a_name, counted_in_a_list),
    *(skipped, skipped_by_length, sorted_and_counted, any_of_a_mask, in_a_function),
    *(a_name_is_chosen, one_part_in_another, written_in_place, step_after_step),
)


def sets_an_attribute(self: Model, x: torch.Tensor) -> Any:
    self.flag = False
    y = self.gate(x)
    if y.sum() > 0:
        self.flag = True
    return y * 2 if self.flag else y


def fills_a_list(self: Model, x: torch.Tensor) -> Any:
    y, found = self.gate(x), []
    if y.sum() > 0:
        found.append(y * 2)
    return y + len(found)


def counts(self: Model, x: torch.Tensor) -> Any:
    y, n = self.gate(x), 0
    for row in range(2):
        if y[row].sum() > 0:
            n += 1
    return y * n


def sets_another_shape(self: Model, x: torch.Tensor) -> Any:
    y = self.gate(x)
    if y.sum() > 0:
        y = y[:, :2]
    return y


def binds_what_was_there(self: Model, x: torch.Tensor) -> Any:
    y, z = self.gate(x), x[:, :4] * 1.0
    if y.sum() > 0:
        y = z
    return y * 2 + z


def writes_to_what_is_chosen(self: Model, x: torch.Tensor) -> Any:
    z = y = self.gate(x)
    if y.sum() > 0:
        y = y * 2
    y.add_(1)
    return y, z


def writes_to_a_view_of_it(self: Model, x: torch.Tensor) -> Any:
    z = y = self.gate(x)
    if y.sum() > 0:
        y = y * 2
    y[:, 0].zero_()
    return z


def keeps_a_tensor(self: Model, x: torch.Tensor) -> Any:
    y = self.gate(x)
    self.last = torch.zeros(4)
    if y.sum() > 0:
        self.last = y[0] * 2
    return y + self.last


def leaves(self: Model, x: torch.Tensor) -> Any:
    y = self.gate(x)
    if y.sum() > 0:
        return y * 2
    return y


def draws_in_it(self: Model, x: torch.Tensor) -> Any:
    y = self.gate(x)
    if y.sum() > 0:
        y = y + torch.rand(()) * 0
    return y * torch.rand(())


def asks_which_object(self: Model, x: torch.Tensor) -> Any:
    z = y = self.gate(x)
    if y.sum() > 0:
        y = y * 2
    return y + 1 if y is z else y


def counts_in_a_module(self: Model, x: torch.Tensor) -> Any:
    y = self.gate(x)
    self.seen[0] = 0
    if y.sum() > 0:
        self.seen[0] += 1
    return y + self.seen[0]


def a_name_that_is_not_there(self: Model, x: torch.Tensor) -> Any:
    y = self.gate(x)
    if y.sum() > 0:
        z = y * 2
    return y if not y.sum() > 0 else z


def gives_one_tensor_to_two_names(self: Model, x: torch.Tensor) -> Any:
    y = self.gate(x)
    z = y - 3
    if y.sum() > 0:
        y = z = y * 2
    return y + 1, z + 2


def refuses(self: Model, x: torch.Tensor) -> Any:
    y = self.gate(x)
    if y.sum() > 1e3:
        raise ValueError("too large")
    return y


def joins_and_counts(self: Model, x: torch.Tensor) -> Any:
    chosen, begin = self.gate(x).argmax(-1), 0
    found: list[torch.Tensor] = []
    for n, count in enumerate(chosen.bincount(minlength=4).tolist()):
        end = begin + count
        if count == 0:
            continue
        found.append(self.experts[n](x[begin:end]))
        begin = end
    return torch.cat(found) / len(found)


def joins_a_mean(self: Model, x: torch.Tensor) -> Any:
    chosen, begin = self.gate(x).argmax(-1), 0
    found: list[torch.Tensor] = []
    for count in chosen.bincount(minlength=4).tolist():
        end = begin + count
        if count == 0:
            continue
        found.append(x[begin:end].sum(0, keepdim=True))
        begin = end
    return torch.cat(found)


def counts_from_one(self: Model, x: torch.Tensor) -> Any:
    chosen, begin = self.gate(x).argmax(-1), 0
    found: list[torch.Tensor] = []
    for n, count in enumerate(chosen.bincount(minlength=4).tolist()):
        end = begin + count
        if count == 1:
            continue
        found.append(self.experts[n](x[begin:end]))
        begin = end
    return torch.cat(found)


def joins_with_gaps(self: Model, x: torch.Tensor) -> Any:
    chosen, begin = self.gate(x).argmax(-1), 0
    found: list[torch.Tensor] = []
    found.append(x[:0])
    for count in chosen.bincount(minlength=4).tolist():
        end = begin + count
        if count == 0:
            continue
        found.append(x[begin:end] * 2)
        begin = end + 1
    return torch.cat(found, 0)


def joins_other_numbers(self: Model, x: torch.Tensor) -> Any:
    chosen = self.gate(x).argmax(-1)
    found: list[torch.Tensor] = []
    for n, count in enumerate(chosen.bincount(minlength=4).tolist()):
        if count == 0:
            continue
        found.append((x[:count] * 2).to(torch.float64 if n == 0 else torch.float32))
    return torch.cat(found)


class Count:
    """An object that keeps its number in a slot."""

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = 1


def goes_on_with_an_iterator(self: Model, x: torch.Tensor) -> Any:
    layers = iter((torch.relu, torch.tanh, torch.sigmoid))
    if (x > 2).any():
        x = next(layers)(x)
    return next(layers)(x)


def goes_on_with_pairs(self: Model, x: torch.Tensor) -> Any:
    pairs = zip((2.0, 3.0), (4.0, 5.0), strict=True)
    if (x > 2).any():
        x = x * next(pairs)[0]
    return x * next(pairs)[1]


def goes_on_with_pairs_in_a_dict(self: Model, x: torch.Tensor) -> Any:
    held = {"pairs": itertools.chain((2.0,), (4.0, 5.0))}
    if (x > 2).any():
        x = x * next(held["pairs"])
    return x * next(held["pairs"])


def goes_on_with_a_generator(self: Model, x: torch.Tensor) -> Any:
    numbers = (n * 2.0 for n in (1, 2, 3))
    if (x > 2).any():
        x = x * next(numbers)
    return x * next(numbers)


def takes_from_a_deque(self: Model, x: torch.Tensor) -> Any:
    queue = deque([2.0, 3.0])
    if (x > 2).any():
        x = x * queue.popleft()
    return x * queue.popleft()


def sets_a_byte(self: Model, x: torch.Tensor) -> Any:
    known = bytearray(2)
    if (x > 2).any():
        known[0] = 4
        x = x + 1
    return x * (known[0] + 1)


def sets_a_number_of_an_array(self: Model, x: torch.Tensor) -> Any:
    known = numpy.zeros(2)
    if (x > 2).any():
        known[0] = 4
        x = x + 1
    return x * float(known[0] + 1)


def sets_a_slot(self: Model, x: torch.Tensor) -> Any:
    count = Count()
    if (x > 2).any():
        count.number += 1
        x = x * 2
    return x * count.number


def fills_a_list_of_a_tuple(self: Model, x: torch.Tensor) -> Any:
    state: tuple[list[int], dict[str, int]] = ([], {})
    if (x > 2).any():
        x = x * 2
        state[0].append(1)
    return x * (len(state[0]) + 1)


def counts_in_a_function(self: Model, x: torch.Tensor) -> Any:
    number = 1

    def count() -> None:
        nonlocal number
        number += 1

    if (x > 2).any():
        count()
        x = x * 2
    return x * number


def counter() -> tuple[Callable[[], None], Callable[[], int]]:
    number = 1

    def count() -> None:
        nonlocal number
        number += 1

    return count, lambda: number


def counts_in_a_function_of_elsewhere(self: Model, x: torch.Tensor) -> Any:
    count, told = counter()
    if (x > 2).any():
        count()
        x = x * 2
    return x * told()


def ends_with_an_error(self: Model, x: torch.Tensor) -> Any:
    known: dict[str, int] = {}
    try:
        if (x > 2).any():
            x = x * 2
            known["there"]
    except KeyError:
        x = x + 1
    return x


def suppresses_an_error(self: Model, x: torch.Tensor) -> Any:
    with contextlib.suppress(ZeroDivisionError):
        if (x > 2).any():
            1 // 0  # noqa: B018
        x = x * 2
    return x


def looked_up(x: torch.Tensor, known: dict[str, int]) -> None:
    if (x > 2).any():
        known["there"]


def catches_the_error_of_a_function(self: Model, x: torch.Tensor) -> Any:
    try:
        looked_up(x, {})
    except KeyError:
        x = x + 1
    return x


def writes_to_a_file(self: Model, x: torch.Tensor) -> Any:
    file = io.StringIO()
    if (x > 2).any():
        file.write("a")
        x = x * 2
    return x + file.tell()


def marks_a_tensor(self: Model, x: torch.Tensor) -> Any:
    other: Any = torch.zeros(1)
    if (x > 2).any():
        other.marked = True
        x = x * 2
    return x + hasattr(other, "marked")


def counts_writes(self: Model, x: torch.Tensor) -> Any:
    other = torch.zeros(1)
    if (x > 2).any():
        other.add_(1)
        x = x * 2
    return x + other._version


#: bodies with Python state that is no attribute, no list and no dict
UNSEEN = (
    *(goes_on_with_an_iterator, goes_on_with_pairs, goes_on_with_pairs_in_a_dict, goes_on_with_a_generator),
    *(takes_from_a_deque, sets_a_byte, sets_a_number_of_an_array, sets_a_slot, fills_a_list_of_a_tuple),
    *(counts_in_a_function, counts_in_a_function_of_elsewhere, writes_to_a_file, marks_a_tensor, counts_writes),
    *(ends_with_an_error, suppresses_an_error, catches_the_error_of_a_function),
)


FOOLING = (
    *(joins_and_counts, joins_a_mean, counts_from_one, joins_with_gaps, joins_other_numbers),
    *(sets_an_attribute, fills_a_list, counts, sets_another_shape, binds_what_was_there),
    *(writes_to_what_is_chosen, writes_to_a_view_of_it, keeps_a_tensor, leaves, draws_in_it),
    *(asks_which_object, counts_in_a_module, a_name_that_is_not_there),
    *(gives_one_tensor_to_two_names, refuses),
)


def watched(run: Run, to: str = "torch") -> tuple[Model, Program]:
    model, observer = Model(run).eval(), InputObserver()
    with torch.no_grad(), observer(model):
        for batch, seed in ((3, 1), (5, 2), (4, 3)):
            torch.manual_seed(seed)
            model(torch.randn(batch, 8))
    return model, observer.export(to=to)


def check(model: Model, program: Program, n_calls: int = 40) -> int:
    """Passes when the program gives what the model gives, or refuses; returns how often it refuses."""
    n_refused = 0
    for seed in range(n_calls):
        torch.manual_seed(seed)
        x = torch.randn(2 + seed % 9, 8) + (seed % 5 - 2) / 2
        torch.manual_seed(seed)
        with torch.no_grad():
            expected = model(x.clone())
        torch.manual_seed(seed)
        try:
            got = program(x.clone())
        except RejectedCallError:
            n_refused += 1
            continue
        torch.testing.assert_close(got, expected)
    return n_refused


def test_experts_without_tokens_are_skipped() -> None:
    model, program = watched(skipped)
    assert program.verify().verified
    assert check(model, program) == 0
    assert torch.equal(program(torch.zeros(2, 8)), model(torch.zeros(2, 8)))
    assert len(program.graphs) == 2  # one for a batch of 1


@pytest.mark.parametrize("run", SERVED, ids=lambda run: run.__name__)
@pytest.mark.one_in(8)
def test_parts_count_where_their_test_says_so(run: Run) -> None:
    model, program = watched(run)
    assert check(model, program) == 0
    assert program.verify().verified


@pytest.mark.slow
def test_a_file_of_onnx_computes_the_same() -> None:
    model, program = watched(skipped, to="onnx")
    assert program.verify().verified
    assert check(model, program, 10) == 0


@pytest.mark.parametrize("run", FOOLING, ids=lambda run: run.__name__)
@pytest.mark.one_in(21)
@pytest.mark.slow
def test_what_else_is_seen_is_decided_by_values(run: Run) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model, program = watched(run)
        except OnlookerError:
            return
    check(model, program)


@pytest.mark.parametrize("run", UNSEEN, ids=lambda run: run.__name__)
@pytest.mark.one_in(6)
def test_state_of_any_kind_is_decided_by_values(run: Run) -> None:
    model, observer = Model(run).eval(), InputObserver()
    with torch.no_grad(), observer(model):
        for batch in (3, 5):
            model(torch.rand(batch, 8) + 3)
    program = observer.export()
    assert program.verify().verified
    assert 0 < check(model, program) < 40


@pytest.mark.slow
def test_the_report_says_which_branches_are_traced_on_one_side() -> None:
    _, program = watched(skipped)
    (note,) = [note for note in program.graphs[0].notes if "counts where its test says so" in note]
    assert "if rows.numel() == 0" in note


def test_the_model_is_left_as_it_was() -> None:
    model = Model(counts_in_a_module)
    before = list(itertools.chain(model.seen, [model.flag]))
    model, _ = watched(skipped)
    assert [*model.seen, model.flag] == before
