"""Loops of which Python keeps a count are not rolled: no graph has the number of compared steps for theirs."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from onlooker import InputObserver, RejectedCallError
from onlooker.repairs.loops.loop_lists import counted_by


def counted_in_enumerate(model: Any, x: torch.Tensor) -> torch.Tensor:
    h, n = x.new_zeros(x.shape[0], 4), 0
    for _, row in enumerate(x.unbind(1)):
        h, n = torch.tanh(model.cell(row + h)), n + 1
    return h * 2 if n % 16 == 0 else h


def counted_on_the_model(model: Any, x: torch.Tensor) -> torch.Tensor:
    h = x.new_zeros(x.shape[0], 4)
    model.steps = 0
    for t in range(x.shape[1]):
        h = torch.tanh(model.cell(x[:, t] + h))
        model.steps += 1
    return h * 2 if model.steps % 16 == 0 else h


def counted_by_keys(model: Any, x: torch.Tensor) -> torch.Tensor:
    h, found = x.new_zeros(x.shape[0], 4), {}
    for t in range(x.shape[1]):
        h = torch.tanh(model.cell(x[:, t] + h))
        found[f"step{len(found)}"] = h
    return h * 2 if "step15" in found and "step16" not in found else h


def counted_afterwards(model: Any, x: torch.Tensor) -> torch.Tensor:
    h, found = x.new_zeros(x.shape[0], 4), []
    for t in range(x.shape[1]):
        h = torch.tanh(model.cell(x[:, t] + h))
        found.append(h)
    return h * 2 if sum(1 for _ in found) % 16 == 0 else h


def stepped_through(model: Any, x: torch.Tensor) -> torch.Tensor:
    h, numbers = x.new_zeros(x.shape[0], 4), iter(range(1000))
    for t in range(x.shape[1]):
        h = torch.tanh(model.cell(x[:, t] + h))
        next(numbers)
    return h * 2 if next(numbers) % 16 == 0 else h


class Loop(nn.Module):
    def __init__(self, run: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.cell, self.run, self.steps = nn.Linear(4, 4), run, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.run(self, x)


RUNS = (counted_in_enumerate, counted_on_the_model, counted_by_keys, counted_afterwards, stepped_through)


@pytest.mark.parametrize("run", RUNS)
def test_a_count_is_right_or_refused(run: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
    model, observer = Loop(run).eval(), InputObserver()
    with torch.no_grad(), observer(model):
        for batch, length in ((2, 3), (3, 5)):
            model(torch.randn(batch, length, 4))
    program = observer.export()
    for length in (3, 16, 17):
        x = torch.randn(2, length, 4)
        try:
            got = program(x)
        except RejectedCallError:
            continue
        torch.testing.assert_close(got, model(x))


@pytest.mark.parametrize(
    ("read", "counts"),
    [
        ("torch.stack(found, 1)", False),
        ("found", True),
        ("sum(torch.tanh(f) for f in x)", False),
        ("torch.cat(list(reversed(found)))", False),
        ("torch.stack(found[::-1])", False),
        ("h * len(found)", False),
        ("found[-1]", False),
        ("found[5]", False),  # the trace is told that this step is no end
        ("torch.stack(found[1:-1])", False),
        ("[f * g for f, g in zip(found, found[1:])]", False),
        ("sum(found)", False),
        ("max(found)", True),
        ("found[60:]", True),
        ("torch.stack([f for f in found])", False),  # another loop, whose own results are looked at
        ("torch.stack([f for f in found if f.shape[0]])", True),
        ("torch.stack([f for g in found for f in g])", True),
        ("model.pool(found)", True),
        ("h * 2 if found else h", True),
    ],
)
def test_readings_that_may_count(read: str, counts: bool) -> None:
    source = f"def f(x):\n    found = []\n    for t in x:\n        found.append(t)\n    return {read}\n"
    assert bool(counted_by(ast.parse(source), {"found"}, 3)) == counts


def test_a_list_whose_name_stands_for_something_else_is_read_no_longer() -> None:
    loop = "def f(x):\n    found = []\n    for t in x:\n        found.append(t)\n"
    after = "    return found.reshape(2, -1)\n"
    assert not counted_by(ast.parse(loop + "    found = torch.cat(found)\n" + after), {"found"}, 3)
    in_a_branch = "    if x[0]:\n        found = torch.cat(found)\n"
    assert counted_by(ast.parse(loop + in_a_branch + after), {"found"}, 3)
    assert counted_by(ast.parse(loop + "    found = found[::-1]\n" + after), {"found"}, 3)
    assert counted_by(ast.parse(loop + "    found = [f for f in found]\n" + after), {"found"}, 3)
