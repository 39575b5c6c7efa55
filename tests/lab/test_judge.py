"""Two results are compared without the inputs that the model passes through."""

from __future__ import annotations

from typing import Any

import torch

from onlooker.core.path import Name, Path
from onlooker.core.spec import Axis
from onlooker.lab.judge import (
    computed_outputs,
    have_same_ranks,
    perturbed,
    results_agree,
    results_equal,
    results_within_rounding,
)
from onlooker.materialise.domains import Domains
from onlooker.pytrees.open import open_tree

X = Path((Name("x"),))


def test_an_output_that_is_an_input_shows_nothing() -> None:
    x = torch.arange(6.0)
    values = {X: x}
    same = results_equal(values, open_tree((x + 1, x)), open_tree((x + 1, x + 2)))
    assert same  # the second output is passed through
    assert not results_equal(values, open_tree((x + 1, x)), open_tree((x + 3, x)))


def test_where_every_output_is_an_input_all_are_compared() -> None:
    x = torch.arange(6.0)
    assert computed_outputs([x], [x.clone()]) == [0]
    assert not results_equal({X: x}, open_tree((x,)), open_tree((x + 1,)))


def test_two_ways_to_compute_a_result_round_otherwise() -> None:
    x = torch.linspace(0.0, 6.0, 7)
    rounded = open_tree((x + 1 + 4e-6,))
    assert results_within_rounding({}, open_tree((x + 1,)), rounded)
    assert not results_equal({}, open_tree((x + 1,)), rounded)
    assert not results_within_rounding({}, open_tree((x + 1,)), open_tree((x + 1.01,)))


def test_short_floats_are_equal_to_the_last_bit() -> None:
    x = torch.ones(3, dtype=torch.bfloat16)
    assert results_equal({}, open_tree((x,)), open_tree((x.clone(),)))
    assert not results_equal({}, open_tree((x,)), open_tree((x + 2**-7,)))
    nothing = open_tree((x * torch.nan,))
    assert results_equal({}, nothing, nothing)


def test_results_agree_in_containers_and_values() -> None:
    x = torch.arange(6.0)
    assert results_agree(open_tree({"a": x}), open_tree({"a": x + 1e-7}))
    assert not results_agree(open_tree({"a": x}), open_tree({"a": x + 1}))
    assert not results_agree(open_tree({"a": x}), open_tree([x]))


def test_the_form_of_a_result_is_its_ranks() -> None:
    assert have_same_ranks(open_tree((torch.zeros(2, 3), 1)), open_tree((torch.zeros(5, 7), 2)))
    assert not have_same_ranks(open_tree((torch.zeros(2, 3),)), open_tree((torch.zeros(2),)))


def test_only_what_was_added_is_perturbed() -> None:
    before: dict[Path, Any] = {X: torch.tensor([[3, 5, 3]])}
    values: dict[Path, Any] = {X: torch.tensor([[3, 5, 3, 5, 3]])}
    changed = perturbed(values, before, [Axis(X, 1)], Domains())[X]
    assert changed[0, :3].tolist() == [3, 5, 3]
    assert all(one != two for one, two in zip(changed[0, 3:].tolist(), [5, 3], strict=True))
    assert set(changed.flatten().tolist()) <= {3, 5}  # ids stay among those that were seen
    assert values[X].tolist() == [[3, 5, 3, 5, 3]]
