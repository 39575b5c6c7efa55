"""Two results hold the same things, whatever the order in which an object got its attributes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import DynamicCache

from onlooker import InputObserver
from onlooker.core.path import Attr, Key
from onlooker.core.structure import Structure, Tree
from onlooker.pytrees.comparisons.agree import agreement_of_trees, leaf_difference, sufficient_atol
from onlooker.pytrees.open import open_tree


@dataclass
class Pair:
    first: Any
    second: Any


def tree(kind: type, names: list[str]) -> Tree[Any]:
    """An object, or a dict, whose attributes hold two leaves each: the name, and its length."""
    leaf = Structure()
    pair = Structure("pair", (Key("name"), Key("length")), (leaf, leaf))
    structure = Structure("made", tuple(kind(name) for name in names), (pair,) * len(names))
    return Tree(structure, tuple(value for name in names for value in (name, len(name))))


@given(st.lists(st.text(max_size=3), unique=True, max_size=5), st.randoms())
def test_attributes_may_stand_in_any_order_and_keys_may_not(names: list[str], random: Any) -> None:
    shuffled = random.sample(names, len(names))
    assert agreement_of_trees(tree(Attr, names), tree(Attr, shuffled)).holds
    assert agreement_of_trees(tree(Key, names), tree(Key, shuffled)).holds is (names == shuffled)


@pytest.mark.parametrize(
    "other",
    [
        {"a": torch.ones(2)},
        {"b": torch.ones(3), "a": torch.ones(2)},
        {"a": torch.ones(2), "b": torch.ones(3), "c": 1},
        {"a": torch.ones(2), "b": [torch.ones(3)]},
        {"a": torch.ones(2), "b": Pair(torch.ones(3), 1)},
        [torch.ones(2), torch.ones(3)],
        torch.ones(2),
    ],
)
def test_other_parts_do_not_agree(other: Any) -> None:
    found = agreement_of_trees(open_tree({"a": torch.ones(2), "b": torch.ones(3)}), open_tree(other))
    assert "other parts" in found.note


def test_the_leaf_that_differs_is_named_by_its_own_path() -> None:
    left, right = DynamicCache(), DynamicCache()
    for cache, value in ((left, 1.0), (right, 2.0)):
        cache.update(torch.ones(1, 1, 2, 2), torch.full((1, 1, 2, 2), value), 0)
    layer = right.layers[0]
    attributes = dict(reversed(vars(layer).items()))
    vars(layer).clear()
    vars(layer).update(attributes)
    found = agreement_of_trees(open_tree(left), open_tree(right))
    assert found.note.startswith(".layers[0].values: ")
    assert found.difference == 1.0


@pytest.mark.parametrize(
    ("expected", "got", "wanted"),
    [
        ([1.0, 3.0], [1.0, 3.5], 0.125),  # 0.5 of 1 + 3
        ([1.0, 3.0], [1.0, 3.0], 0.0),
        ([1, 3], [1, 4], math.inf),
        ([1.0, 3.0], [1.0, math.nan], math.inf),
        ([1.0, 3.0], [1.0], math.inf),
    ],
)
def test_the_tolerance_that_is_enough(expected: list[Any], got: list[Any], wanted: float) -> None:
    first, second = (open_tree({"scores": torch.tensor(values)}) for values in (expected, got))
    assert sufficient_atol(first, second) == wanted
    assert agreement_of_trees(first, second, atol=wanted).holds == math.isfinite(wanted)
    if 0 < wanted < math.inf:
        assert not agreement_of_trees(first, second, atol=0.99 * wanted).holds


@pytest.mark.parametrize(
    ("expected", "got", "holds"),
    [
        (torch.tensor(1.5373730659).item(), torch.tensor(1.5373725891).item(), True),  # sums in another order
        (torch.tensor(1.5373730659).item(), torch.tensor(1.5375).item(), False),
        (1 / 3, 0.33333334, False),  # a number of Python, of no tensor of float32
        (2.0, 2, False),
        (math.inf, 2.0, False),
        (math.nan, math.nan, True),
    ],
)
def test_floats_that_tensors_gave_agree_as_tensors_do(expected: float, got: float, holds: bool) -> None:
    found = agreement_of_trees(open_tree([expected]), open_tree([got]))
    assert found.holds is holds


def test_no_tolerance_is_enough_for_another_form() -> None:
    first, second = open_tree({"scores": torch.ones(2)}), open_tree({"logits": torch.ones(2)})
    assert sufficient_atol(first, second) == math.inf


ARRAYS = [numpy.array([1.0, float("nan")]), numpy.zeros(3), numpy.array(["a", "b"])]


@pytest.mark.parametrize("array", ARRAYS, ids=str)
def test_an_array_beside_tensors_is_compared_item_by_item(array: Any) -> None:
    assert leaf_difference(array, array.copy()) == 0
    others = [array[:1].repeat(4), array.reshape(1, -1), list(array), None]
    assert all(leaf_difference(array, other) == math.inf for other in others)
    assert leaf_difference(numpy.zeros(2), numpy.ones(2)) == math.inf


class GivesAnArray(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return x * 2, numpy.zeros(3)


def test_a_model_that_gives_an_array_is_exported() -> None:
    observer, model = InputObserver(), GivesAnArray()
    with torch.no_grad(), observer(model):
        for rows in (2, 3):
            model(torch.rand(rows, 4))
    program = observer.export()
    assert program.verify().verified
    doubled, array = program(torch.ones(5, 4))
    assert doubled.sum() == 40
    assert array.tolist() == [0, 0, 0]
