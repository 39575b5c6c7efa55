"""Bounds of sizes: from the user, from the plan, or from the watched calls, and never from experiments."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from onlooker import InputObserver, Program
from onlooker.core.errors import RejectedCallError, UsageError
from onlooker.core.plan import Plan, Symbol
from onlooker.core.sizes.expression import Expression
from onlooker.core.structure import Structure
from onlooker.hypotheses.overrides import overrides_of
from onlooker.hypotheses.ranges import check_bounded, greatest, plans_in_ranges, seen_sizes


def plan(*symbols: Symbol) -> Plan:
    return Plan("main", Structure("arguments"), (), symbols)


def in_ranges(symbol: Symbol, ranges: Any, **seen: tuple[int, int]) -> str:
    (found,) = plans_in_ranges([plan(symbol)], overrides_of(ranges=ranges), seen)
    return found.symbols[0].range


@pytest.mark.parametrize(
    ("symbol", "seen", "found"),
    [
        (Symbol("n"), (3, 5), "3 to 5"),
        (Symbol("n"), (1, 1), "1 to 1"),
        (Symbol("n", low=0), (0, 4), "0 to 4"),
        (Symbol("n", high=70), (2, 65), "2 to 65"),
        (Symbol("n", low=10, high=20), (3, 65), "10 to 20"),
    ],
)
def test_an_observed_range_is_the_least_and_the_greatest_size_of_the_calls(
    symbol: Symbol, seen: tuple[int, int], found: str
) -> None:
    assert in_ranges(symbol, "observed", n=seen) == found
    assert in_ranges(symbol, {"n": "observed"}, n=seen) == found


def test_the_star_stands_for_all_symbols_without_limits_of_their_own() -> None:
    seen = {"n": (3, 9), "k": (2, 2)}
    overrides = overrides_of(ranges={"n": (1, 64), "*": "observed"})
    (found,) = plans_in_ranges([plan(Symbol("n"), Symbol("k"))], overrides, seen)
    assert [s.range for s in found.symbols] == ["1 to 64", "2 to 2"]


def test_one_range_holds_for_all_plans_with_the_symbol() -> None:
    first, second = plan(Symbol("n"), Symbol("k")), plan(Symbol("n", low=3))
    found = plans_in_ranges([first, second], overrides_of(ranges="observed"), {"n": (1, 9), "k": (2, 4)})
    assert [[s.range for s in each.symbols] for each in found] == [["1 to 9", "2 to 4"], ["3 to 9"]]


def test_a_symbol_that_no_call_shows_keeps_its_range() -> None:
    assert in_ranges(Symbol("n"), "observed") == "1 and more"


def test_given_ranges_narrow_a_plan_and_never_widen_it() -> None:
    bounded = Symbol("n", low=2, high=20)
    assert in_ranges(bounded, {"n": (1, 64)}) == "2 to 20"
    assert in_ranges(bounded, {"n": (4, 10)}) == "4 to 10"
    ended = replace(bounded, limit="20 rows of pe, model.py:3")
    assert in_ranges(ended, {"n": (4, 10)}) == "4 to 10"
    with pytest.raises(UsageError, match=r"no more than 20: 20 rows of pe, model\.py:3") as caught:
        in_ranges(ended, {"n": (2, 21)})
    assert caught.value.slug == "range-beyond-bound"
    assert in_ranges(bounded, {"n": (4, None)}) == "4 to 20"
    assert in_ranges(bounded, {"n": (None, 10)}) == "2 to 10"
    with pytest.raises(UsageError, match=r"allows n 2 to 20; ranges= asks for 21 to 30.*bad-pin"):
        in_ranges(bounded, {"n": (21, 30)})


def test_sizes_without_a_bound_are_named_with_those_of_the_calls() -> None:
    plans = [plan(Symbol("n", high=4), Symbol("k", low=0))]
    with pytest.raises(UsageError, match=r"nothing limits k\..*ranges=\{'n': \(1, 4\), 'k': \(0, 9\)\}.*bounds-needed"):
        check_bounded(plans, {"n": (2, 3), "k": (2, 9)}, "x")
    check_bounded(plans_in_ranges(plans, overrides_of(ranges="observed"), {"k": (2, 9)}), {}, "x")


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
    tally = program.to("torch", ranges={"batch": (1, 2), "x_dim_1": (1, 4)}).verify()
    assert tally.verified, [check for check in tally.checks if not check.passed]
    sizes: list[dict[str, Any]] = [dict(check.sizes) for check in tally.checks if check.sizes]
    assert {size["batch"] for size in sizes} == {1, 2}
    assert {size["x_dim_1"] for size in sizes} <= {1, 2, 3, 4}
    assert {check.focus.value for check in tally.checks} >= {"floats", "values"}


class Scaled(torch.nn.Module):
    """Counts how often it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = [0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.asked[0] += 1
        return x.cumsum(1) * 2


def watched(*sizes: tuple[int, int]) -> InputObserver:
    observer, model = InputObserver(), Scaled().eval()
    with observer(model):
        for batch, steps in sizes:
            model(torch.ones(batch, steps))
    return observer


#: the targets that need no compiler and no package of their own
QUICK = ("torch", "onnx", "openvino")


@pytest.mark.parametrize("target", QUICK)
def test_a_program_of_observed_sizes_takes_what_was_watched_and_what_lies_between(target: str) -> None:
    program = watched((3, 4), (3, 9), (3, 7)).export(to=target, ranges="observed")
    assert [graph.target for graph in program.graphs] == [target]
    (symbol,) = program.plans[0].symbols
    assert (symbol.name, symbol.range) == ("x_dim_1", "4 to 9")
    tally = program.verify()
    assert tally.verified, tally
    tried = {dict(check.sizes)["x_dim_1"] for check in tally.checks if check.sizes}
    assert tried - {4, 7, 9}  # one that no call had
    assert all(symbol.allows(size) for size in tried)
    assert program(torch.ones(3, 8)).shape == (3, 8)
    with pytest.raises(RejectedCallError, match=r"is x_dim_1, 4 to 9, the call has 10"):
        program(torch.ones(3, 10))
    with pytest.raises(RejectedCallError, match=r"is always 3, the call has 2"):
        program(torch.ones(2, 4))


@pytest.mark.parametrize("target", QUICK)
@pytest.mark.parametrize("ranges", [{"batch": (1, 64), "x_dim_1": "observed"}, {"batch": (1, 64), "*": "observed"}])
@pytest.mark.one_in(2)
def test_limits_and_observed_sizes_go_together(target: str, ranges: Any) -> None:
    program = watched((3, 4), (3, 9)).export(to=target, ranges=ranges)
    found = {symbol.name: symbol.range for symbol in program.plans[0].symbols}
    assert found == {"batch": "1 to 64", "x_dim_1": "4 to 9"}
    assert program.verify().verified


@pytest.mark.parametrize("target", QUICK)
def test_a_program_is_narrowed_when_it_is_converted(target: str) -> None:
    wide = watched((2, 4), (3, 9)).export()
    narrow = wide.to(target, ranges={"batch": "observed", "x_dim_1": (2, 16)})
    assert [symbol.range for symbol in narrow.plans[0].symbols] == ["2 to 3", "2 to 16"]
    assert narrow.verify().verified
    with pytest.raises(RejectedCallError, match=r"is batch, 2 to 3, the call has 4"):
        narrow(torch.ones(4, 5))
    assert wide(torch.ones(4, 50)).shape == (4, 50)
    with pytest.raises(UsageError, match=r"allows batch 2 to 3; ranges= asks for 8 to 9.*bad-pin"):
        wide.to("torch", ranges={"batch": (2, 3)}).to(target, ranges={"batch": (8, 9)})


def test_axes_that_no_call_changed_are_not_probed_where_the_sizes_of_the_calls_are_wanted() -> None:
    observer = watched((3, 4), (3, 9))
    model = observer._watcher.model
    model.asked[0] = 0
    (plan,) = observer.plans(ranges="observed")
    assert [str(size) for size in plan.inputs[0].shape] == ["3", "x_dim_1"]
    assert not plan.probes


def test_an_axis_that_the_caller_made_dynamic_changes_all_the_same() -> None:
    (plan,) = watched((3, 4), (3, 9)).plans(ranges="observed", dynamic={"x": [0]})
    assert {symbol.name: symbol.range for symbol in plan.symbols} == {"batch": "1 and more", "x_dim_1": "4 to 9"}


def test_the_length_of_an_absent_mask_is_no_observed_size() -> None:
    class Masked(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
            return x * 2 if y is None else x * 2 + y.sum()

    observer, model = InputObserver(), Masked().eval()
    with observer(model):
        for args in ((torch.ones(3, 4),), (torch.ones(3, 6), torch.ones(7)), (torch.ones(3, 5), torch.ones(9))):
            model(*args)
    plans = observer.plans(ranges="observed")
    found = {symbol.range for plan in plans for symbol in plan.symbols}
    assert "7 to 9" in found
    assert not any(text.startswith("1 ") for text in found)


class Rolled(torch.nn.Module):
    def forward(self, x: torch.Tensor, k: int) -> torch.Tensor:
        return x.roll(k, 1) * k


class Behind(torch.nn.Module):
    def forward(self, x: torch.Tensor, k: int) -> torch.Tensor:
        return x[:, k:]


@pytest.mark.parametrize("watched", [(-5, -7), (-5, 2, -7), (-5, 0, 7)], ids=str)
def test_an_int_that_was_below_0_is_served_from_the_least_one_on(watched: tuple[int, ...]) -> None:
    model, observer = Rolled(), InputObserver()
    with observer(model):
        for rows, k in enumerate(watched, 2):
            model(torch.randn(rows, 6 + rows), k)
    program = observer.export()
    assert program.verify().verified
    for k in (*watched, -3, 4):
        x = torch.randn(4, 9)
        torch.testing.assert_close(program(x, k), model(x, k))
    with pytest.raises(RejectedCallError):
        program(torch.randn(4, 9), -8)


def test_each_watched_int_below_0_has_a_graph_where_torch_takes_none_for_a_size() -> None:
    """torch 2.13 gives a slice from a negative symbol on a length of no range."""
    model, observer = Behind(), InputObserver()
    calls = [(torch.randn(2, 8), -5), (torch.randn(3, 10), -7)]
    with observer(model):
        for call in calls:
            model(*call)
    program = observer.export()
    assert not program.refusals
    for call in calls:
        torch.testing.assert_close(program(*call), model(*call))
