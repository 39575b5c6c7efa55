"""Where two objects differ in what they hold."""

from __future__ import annotations

import copy
import functools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch

from onlooker.pytrees.comparisons.same_object import difference_of


class Config:
    def __init__(self) -> None:
        self.sizes, self.names, self.dtype = [1, 2], {"a": 0.5}, torch.float16


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)])
        self.config, self.table = Config(), [torch.arange(3)]
        self.owner = OrderedDict(me=self)
        self.scaled = functools.partial(self.forward, 2)

    def forward(self, x: Any) -> Any:
        return x

    def other(self, x: Any) -> Any:
        return x


def method_of_its_own(model: Any) -> None:
    model.forward = model.other


CHANGES: list[tuple[Callable[[Any], Any], str]] = [
    (lambda model: None, ""),
    (lambda model: model.eval(), "model.training"),
    (lambda model: model.layers[0].weight.data.add_(1), "model.layers.0.weight"),
    (lambda model: model.layers[1].running_mean.add_(1), "model.layers.1.running_mean"),
    (lambda model: model.layers.append(torch.nn.ReLU()), "model.layers.2"),
    (lambda model: model.layers.__delitem__(1), "model.layers.1"),
    (lambda model: model.half(), "model.layers.0.weight"),
    (lambda model: model.config.sizes.append(3), "model.config.sizes[2]"),
    (lambda model: model.config.names.update(a=1), "model.config.names['a']"),
    (lambda model: model.table[0].add_(1), "model.table[0]"),
    (lambda model: setattr(model, "more", 1), "model.more"),
    (method_of_its_own, "model.forward"),
    (lambda model: model.register_forward_hook(lambda *_: None), "model._forward_hooks["),
    (lambda model: model.scaled.keywords.update(y=1), "model.scaled.keywords['y']"),
]


@pytest.mark.parametrize(("change", "place"), CHANGES)
def test_a_changed_copy_differs_at_the_place_of_the_change(change: Callable[[Any], Any], place: str) -> None:
    model = Model()
    twin = copy.deepcopy(model)
    change(twin)
    found = difference_of(model, twin)
    assert found.startswith(place) if place else not found
    assert bool(difference_of(twin, model)) == bool(place)


def test_a_weight_that_two_modules_share_is_shared_in_the_other_as_well() -> None:
    model: Any = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)])
    model[1].weight = model[0].weight
    twin = copy.deepcopy(model)
    assert difference_of(model, twin) == ""
    twin[1].weight = torch.nn.Parameter(twin[0].weight.detach().clone())
    assert difference_of(model, twin) == "model.1.weight"


@pytest.mark.parametrize("value", [object(), torch.zeros(2).to_sparse(), torch.tensor(float("nan"))])
def test_what_cannot_be_compared_differs(value: Any) -> None:
    one, other = Config(), Config()
    one.value, other.value = value, copy.deepcopy(value) if isinstance(value, torch.Tensor) else object()  # type: ignore[attr-defined]
    assert difference_of(one, other) == "model.value"
