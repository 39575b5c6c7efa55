"""Steps that all observed sizes have in common are a coincidence where the model takes a size between them."""

from __future__ import annotations

import pytest
import torch

from onlooker import InputObserver, Plan
from onlooker.core.experiment import FindingKind
from onlooker.core.plan import Symbol
from onlooker.infer.sizes import sizes_off_step


class Chunks(torch.nn.Module):
    """Takes lengths that are multiples of a chunk."""

    def __init__(self, chunk: int) -> None:
        super().__init__()
        self.chunk = chunk

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] % self.chunk:
            raise ValueError("not a multiple")
        return x.cumsum(1)


def plan_of(chunk: int, *lengths: int) -> Plan:
    model, observer = Chunks(chunk), InputObserver()
    with observer(model):
        for length in lengths:
            model(torch.rand(2, length))
    (plan,) = observer.plans()
    return plan


def length_of(plan: Plan) -> Symbol:
    (name,) = plan.leaf("x").shape[1].symbols
    return plan.symbol(name)


@pytest.mark.parametrize(("chunk", "step"), [(1, 1), (4, 4), (8, 8), (16, 16)])
def test_a_step_is_kept_only_where_the_model_has_one(chunk: int, step: int) -> None:
    plan = plan_of(chunk, 16, 32, 64)
    assert length_of(plan).step == step


@pytest.mark.parametrize("chunk", [1, 8, 16, 32])
def test_a_step_is_tested_where_a_relation_hid_the_size(chunk: int) -> None:
    model, observer = Chunks(chunk), InputObserver()
    with observer(model):
        for rows in (2, 3):
            model(torch.rand(rows, 32 * rows))
    (plan,) = observer.plans()
    assert length_of(plan).step == chunk


def test_a_step_that_is_a_coincidence_is_an_experiment_on_record() -> None:
    plan = plan_of(1, 16, 32, 64)
    (record,) = [probe for probe in plan.probes if probe.label == f"{length_of(plan).name} probed at 65"]
    assert record.finding.kind is FindingKind.ACCEPTED
    assert "probed at 65 (x.shape[1] = 65): accepted." in plan.explain("x", 1)


@pytest.mark.parametrize(("step", "sizes"), [(16, [65, 72]), (6, [65, 67, 66]), (7, [65])])
def test_sizes_off_a_step_have_smaller_steps(step: int, sizes: list[int]) -> None:
    symbol = Symbol("n", (32, 64), step=step)
    assert list(sizes_off_step(symbol)) == sizes
    assert list(sizes_off_step(symbol, below=True)) == [*sizes, *(128 - size for size in sizes)]


class OfTable(torch.nn.Module):
    """Has places for 64 tokens, and is watched with so many."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = torch.nn.Embedding(9, 4), torch.nn.Embedding(64, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.tokens(x) + self.places(torch.arange(x.shape[1]))


@pytest.mark.parametrize("calls", [((2, 64), (1, 32)), ((4, 64), (2, 32)), ((2, 64), (3, 32)), ((2, 64), (2, 48))])
@pytest.mark.one_in(2)
def test_the_most_that_a_table_has_is_no_step_and_no_relation(calls: tuple[tuple[int, int], ...]) -> None:
    model, observer = OfTable().eval(), InputObserver()
    with torch.no_grad(), observer(model):
        for shape in calls:
            model(torch.randint(0, 9, shape))
    program = observer.export()
    assert program.verify().verified
    for shape in ((3, 40), (1, 1), (2, 63)):
        x = torch.randint(0, 9, shape)
        with torch.no_grad():
            torch.testing.assert_close(program(x), model(x))
