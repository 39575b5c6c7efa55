"""Bounds of sizes: from the user, from the plan, or from the watched calls, and never from experiments."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from onlooker import InputObserver, Program
from onlooker.core.errors import UsageError
from onlooker.core.expression import Expression
from onlooker.core.plan import Plan, Symbol
from onlooker.core.structure import Structure
from onlooker.targets.ranges import bounded_plans, greatest, seen_sizes


def plan(*symbols: Symbol) -> Plan:
    return Plan("main", Structure("arguments"), (), symbols)


def highs(plans: list[Plan]) -> dict[str, int | None]:
    return {symbol.name: symbol.high for each in plans for symbol in each.symbols}


@pytest.mark.parametrize(
    ("size", "symbol", "high"),
    [
        (1, Symbol("n"), 1),
        (2, Symbol("n"), 2),
        (5, Symbol("n"), 8),
        (64, Symbol("n"), 64),
        (65, Symbol("n"), 128),
        (0, Symbol("n", low=0), 1),
        (30, Symbol("n", step=6), 36),
        (3, Symbol("n", low=10), 10),
        (65, Symbol("n", high=70), 70),
    ],
)
def test_observed_bounds_are_powers_of_two_and_multiples_of_the_step(size: int, symbol: Symbol, high: int) -> None:
    assert highs(bounded_plans([plan(symbol)], "observed", {"n": (size, size)}, "x")) == {"n": high}


def test_one_bound_holds_for_all_plans_with_the_symbol() -> None:
    first, second = plan(Symbol("n"), Symbol("k")), plan(Symbol("n", low=3))
    found = bounded_plans([first, second], "observed", {"n": (1, 9), "k": (2, 2)}, "x")
    assert [[s.range for s in each.symbols] for each in found] == [["1 to 16", "1 to 2"], ["3 to 16"]]


def test_given_ranges_narrow_a_plan_and_never_widen_it() -> None:
    bounded = plan(Symbol("n", low=2, high=20))
    assert bounded_plans([bounded], {"n": (1, 64)}, {}, "x")[0].symbols[0].range == "2 to 20"
    assert bounded_plans([bounded], {"n": (4, 10)}, {}, "x")[0].symbols[0].range == "4 to 10"
    assert bounded_plans([bounded], {"n": (4, None)}, {}, "x")[0].symbols[0].range == "4 to 20"
    with pytest.raises(UsageError, match=r"n is 2 to 20 in the program.*\(21, 30\).*bad-pin"):
        bounded_plans([bounded], {"n": (21, 30)}, {}, "x")


@pytest.mark.parametrize(
    ("text", "value"),
    [("n", 8), ("n + k", 40), ("n*k + 2", 258), ("k - n", 31), ("min(k, 15)", 15), ("(k - 3)//2 + 1", 15), ("7", 7)],
)
def test_the_bound_of_an_expression_follows_from_its_parts(text: str, value: int) -> None:
    symbols = {"n": Symbol("n", high=8), "k": Symbol("k", low=0, high=32)}
    assert greatest(Expression.parse(text), symbols) == value


class Steps(torch.nn.Module):
    def forward(self, x: torch.Tensor, t: float) -> torch.Tensor:
        return (x if x.shape[1] > 2 else -x).cumsum(1) * t


@pytest.fixture(scope="module")
def program() -> Program:
    observer = InputObserver()
    model = Steps().eval()
    with observer(model):
        for batch, steps, t in ((2, 3, 0.5), (2, 4, 0.25), (2, 2, 1.5)):
            model(torch.ones(batch, steps), t)
    return observer.export()


def test_sizes_of_experiments_are_not_observed(program: Program) -> None:
    seen = seen_sizes(program.plans, program.recording)
    assert seen == {"batch": (2, 2), "x_dim_1": (2, 4)}
    assert max(program.plans[0].symbol("batch").observed) > 2


def test_the_trials_of_a_bounded_program_stay_within_its_bounds(program: Program) -> None:
    """The sizes of the export lie beyond the bounds."""
    assert max(program.graphs[0].sizes.values()) > 4
    plans = bounded_plans(program.plans, "observed", seen_sizes(program.plans, program.recording), "x")
    graphs = [replace(graph, plan=bounded) for graph, bounded in zip(program.graphs, plans, strict=True)]
    tally = program._with_graphs(graphs).verify()
    assert tally.verified, [check for check in tally.checks if not check.passed]
    sizes: list[dict[str, Any]] = [dict(check.sizes) for check in tally.checks if check.sizes]
    assert {size["batch"] for size in sizes} == {1, 2}
    assert {size["x_dim_1"] for size in sizes} <= {1, 2, 3, 4}
    assert {check.focus.value for check in tally.checks} >= {"floats", "values"}
