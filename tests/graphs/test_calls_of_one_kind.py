"""A graph that the values of one call made is looked at with all calls, as every other graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from onlooker import InputObserver
from onlooker.graphs import program_graphs


class Sided(torch.nn.Module):
    """Takes its sides by values, so that each call that a graph refuses leads to a graph of its values."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum() > 0 else x - 1


def test_a_further_graph_is_looked_at_with_all_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []

    class Noted(program_graphs.PlanSearch):
        def __init__(self, plan: Any, samples: Any, *others: Any) -> None:
            looked.append(len(samples))
            super().__init__(plan, samples, *others)

    monkeypatch.setattr(program_graphs, "PlanSearch", Noted)
    model, observer = Sided(), InputObserver()
    with observer(model):
        model(torch.ones(2, 3)), model(-torch.ones(4, 3)), model(torch.ones(5, 3))
    program = observer.export()
    assert len(looked) > 1
    assert set(looked) == {3}
    for x in (torch.ones(7, 3), -torch.ones(6, 3)):
        assert torch.equal(program(x), model(x))
