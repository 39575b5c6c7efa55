"""Sizes for experiments: all generators stand in ``infer.sizes``."""

from __future__ import annotations

import torch

from onlooker import InputObserver, Plan
from onlooker.infer.sizes import (
    alike_sizes,
    example_sizes,
    expressed_sizes,
    is_general,
    nearly_alike_sizes,
    roomy_sizes,
    stepped_sizes,
)


class Joins(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, y], dim=1)


def plan_of_joins() -> Plan:
    model, observer = Joins(), InputObserver()
    with observer(model):
        for batch, one, two in ((2, 5, 3), (3, 4, 9), (4, 8, 7), (5, 2, 11)):
            model(torch.rand(batch, one), torch.rand(batch, two))
    (plan,) = observer.plans(probe=False)
    return plan


def test_examples_are_general_and_end_with_what_was_observed() -> None:
    plan = plan_of_joins()
    *general, observed = example_sizes(plan)
    assert general
    assert all(is_general(plan, sizes) for sizes in general)
    assert sorted(observed.values()) == [5, 8, 11]


def test_roomy_sizes_can_be_made_smaller_and_differ_between_experiments() -> None:
    plan = plan_of_joins()
    first, second = (next(roomy_sizes(plan, number)) for number in (0, 1))
    assert min(expressed_sizes(plan, first)) >= 3
    assert first != second


def test_one_symbol_takes_a_step_and_the_others_stay() -> None:
    plan = plan_of_joins()
    sizes = next(roomy_sizes(plan, 0))
    name = plan.symbols[-1].name
    longer, shorter = (stepped_sizes(plan, sizes, name, way) for way in (1, -1))
    assert longer is not None
    assert shorter is not None
    assert longer[name] > sizes[name] > shorter[name] > 1
    rest = [symbol.name for symbol in plan.symbols[:-1]]
    assert [longer[other] for other in rest] == [shorter[other] for other in rest] == [sizes[other] for other in rest]


def test_a_size_of_two_has_no_shorter_one() -> None:
    plan = plan_of_joins()
    sizes = {symbol.name: 2 for symbol in plan.symbols}
    assert stepped_sizes(plan, sizes, plan.symbols[0].name, -1) is None


def test_sizes_that_were_equal_in_all_calls_are_equal_in_an_example() -> None:
    plan = plan_of_joins()
    first, second, third = (symbol.name for symbol in plan.symbols)
    calls = [{first: 2, second: 5, third: 5}, {first: 7, second: 7, third: 7}]
    for sizes in alike_sizes(plan, calls):
        assert sizes[second] == sizes[third] != sizes[first]
    assert all(len(set(sizes.values())) == 1 for sizes in alike_sizes(plan, calls[1:]))


def test_sizes_that_were_equal_in_all_calls_differ_by_few_steps_where_one_is_at_most_the_other() -> None:
    plan = plan_of_joins()
    first, second, third = (symbol.name for symbol in plan.symbols)
    calls = [{first: 2, second: 5, third: 5}, {first: 7, second: 7, third: 7}]
    found = list(nearly_alike_sizes(plan, calls, example_sizes(plan)))
    assert {sizes[third] > sizes[second] for sizes in found} == {True, False}
    assert all(abs(sizes[third] - sizes[second]) == plan.symbol(third).step for sizes in found)
    assert not list(nearly_alike_sizes(plan, [{first: 2, second: 5, third: 6}], example_sizes(plan)))
