"""Trials of a dear model are made at smaller sizes of the same region, and prove no less."""

from __future__ import annotations

import re

import pytest
import torch

from onlooker import InputObserver, Program
from onlooker.core.plan import Plan, Symbol
from onlooker.core.sizes.expression import Sizes
from onlooker.core.structure import LEAF, Structure
from onlooker.graphs.one_plan import operator_trials
from onlooker.infer.sizes import smaller_sizes
from onlooker.lab.lab import Lab


@pytest.fixture(autouse=True)
def _each_run_is_dear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_trials, "_WORTH_SMALLER", 0)
    monkeypatch.setattr(Lab, "is_dear", lambda *_: True)


class Tokens(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.layer = torch.nn.Embedding(20, 8), torch.nn.Linear(8, 8)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.layer(self.table(ids)).cumsum(1)


class LongOnes(Tokens):
    """From 30 tokens on sums run from the right."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows = self.layer(self.table(ids))
        return rows.flip(1).cumsum(1) if ids.shape[1] >= 30 else rows.cumsum(1)


class Squeezed(Tokens):
    """One row has another rank, whatever its length is."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows = self.layer(self.table(ids)).squeeze(0)
        return rows.sum(rows.ndim - 2)


def exported(model: torch.nn.Module) -> Program:
    observer = InputObserver()
    with observer(model), torch.no_grad():
        for length in (400, 512):
            model(torch.randint(0, 20, (2, length)))
    return observer.export()


def tried_at(program: Program, symbol: str, name: str = "") -> list[dict[str, int]]:
    """The sizes of the trials that let a symbol be 1, of the graph of a name or of all."""
    found = [
        dict(re.findall(r"(\w+) = (\d+)", dropped.evidence))
        for graph in program.graphs
        if name in ("", graph.name)
        for dropped in graph.contract.dropped
        if dropped.formula == f"{symbol} != 1"
    ]
    return [{name: int(size) for name, size in one.items()} for one in found]


def is_right(program: Program, model: torch.nn.Module, rows: int, length: int) -> bool:
    ids = torch.randint(0, 20, (rows, length))
    with torch.no_grad():
        return torch.allclose(program(ids), model(ids), atol=1e-4)


def test_a_batch_of_1_is_tried_with_few_tokens() -> None:
    program = exported(model := Tokens().eval())
    assert tried_at(program, "batch")
    assert all(sizes["sequence"] < 16 for sizes in tried_at(program, "batch"))
    assert is_right(program, model, 1, 1)
    assert is_right(program, model, 1, 300)
    assert program.verify().verified


def test_a_trial_stays_in_the_region_of_the_graph() -> None:
    program = exported(model := LongOnes().eval())
    assert tried_at(program, "batch")
    for graph in program.graphs:
        tried = [sizes["sequence"] for sizes in tried_at(program, "batch", graph.name)]
        assert len({length >= 30 for length in tried}) == 1
    assert is_right(program, model, 1, 29)
    assert is_right(program, model, 1, 30)
    assert is_right(program, model, 1, 300)
    assert program.verify().verified


def test_what_differs_at_a_batch_of_1_is_found_with_few_tokens() -> None:
    program = exported(model := Squeezed().eval())
    assert not tried_at(program, "batch")
    assert is_right(program, model, 1, 7)
    assert is_right(program, model, 3, 50)


class OtherWhereLong(torch.nn.Module):
    """Beyond 30 tokens sums run from the left, except in a trace."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        rows = x * mask[..., None]
        if not torch.compiler.is_exporting() and x.shape[1] > 30:
            return rows.cumsum(1)
        return rows.flip(1).cumsum(1)


def test_masks_are_tried_at_sizes_that_stand_for_the_watched_ones() -> None:
    model, observer = OtherWhereLong().eval(), InputObserver()
    with observer(model), torch.no_grad():
        for length in (400, 512):
            model(torch.randn(2, length, 3), torch.ones(2, length, dtype=torch.int64))
    program = observer.export()
    x, mask = torch.randn(3, 100, 3), torch.ones(3, 100, dtype=torch.int64)
    assert program(x, mask).allclose(model(x, mask), atol=1e-4)


SYMBOLS = (Symbol("batch", (2,)), Symbol("sequence", (400, 512)))
PLAN = Plan("main", Structure(LEAF), (), SYMBOLS)


@pytest.mark.parametrize(
    ("least", "sizes", "is_smaller"),
    [(1, {"batch": 1, "sequence": 48}, True), (40, {"batch": 1, "sequence": 48}, False)],
)
def test_smaller_sizes_keep_those_of_0_and_1(least: int, sizes: Sizes, is_smaller: bool) -> None:
    found = list(smaller_sizes(PLAN, sizes, lambda choice: choice["sequence"] >= least))
    assert bool(found) == is_smaller
    assert all(one["batch"] == 1 and least <= one["sequence"] < 48 for one in found)
