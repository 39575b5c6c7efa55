"""Loops of which Python keeps a count are not rolled: no graph has the number of compared steps for theirs."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from onlooker import InputObserver, RejectedCallError
from onlooker.repairs.loops.loop_lists import counted_by, readings_to_come


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


@pytest.mark.one_in(2)
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
        ("h * 2 if found else h", False),  # a loop that is rolled has a step
        ("h * 2 if not found else h", False),
        ("h * 2 if found[1:] else h", True),
        ("h * 2 if found == [] else h", True),
    ],
)
def test_readings_that_may_count(read: str, counts: bool) -> None:
    source = f"def f(x):\n    found = []\n    for t in x:\n        found.append(t)\n    return {read}\n"
    given = ast.parse(source), {"found"}, 3
    assert bool(counted_by(*given) or readings_to_come(*given)) == counts


@pytest.mark.parametrize(
    ("after", "lines"),
    [
        ("    return found", [(5, 5)]),
        ("    if found[1:]:\n        return 1", [(5, 5)]),
        ("    return [\n        found,\n    ]", [(5, 7)]),
        ("    return [\n        len(found),\n    ]", []),
    ],
)
def test_a_reading_after_the_loop_has_the_lines_of_its_statement(after: str, lines: list[tuple[int, int]]) -> None:
    tree = ast.parse(f"def f(x):\n    found = []\n    for t in x:\n        found.append(t)\n{after}\n")
    assert not counted_by(tree, {"found"}, 3)
    assert [(one.first, one.last) for one in readings_to_come(tree, {"found"}, 3)] == lines


@pytest.mark.parametrize(
    "source",
    [
        "def f(x):\n found = []\n for t in x:\n  found.append(t)\n  if found[60:]: break",
        "def f(x):\n found = []\n g = lambda: found[60:]\n for t in x:\n  found.append(t)\n return g()",
        "def f(x):\n found = []\n for t in x:\n  found.append(t)\n y = 1; return found[60:]",
    ],
)
def test_a_reading_that_no_line_after_the_loop_begins_with_counts_at_once(source: str) -> None:
    line = 3 if "lambda" not in source else 4
    assert counted_by(ast.parse(source), {"found"}, line)
