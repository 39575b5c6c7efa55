"""A difference that rounding explains is a reading where both runs compute by the same operators."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from onlooker import InputObserver
from onlooker.hypotheses.reading import reads_difference
from onlooker.pytrees.open import open_tree

ZEROS = torch.tensor([[1.0, 1.0, 0.0]])


def faintly(x: torch.Tensor) -> torch.Tensor:
    """Adds little of the last number."""
    return x[:, 0] + 1e-7 * x[:, 2]


def first(x: torch.Tensor) -> torch.Tensor:
    return x[:, 0] * 2.0


def whole(x: torch.Tensor) -> torch.Tensor:
    return x.sum(1)


def by_another_way(x: torch.Tensor) -> torch.Tensor:
    """Multiplies in another order where some number is zero."""
    third = x[:, :1].double()
    return (third * 0.1 * 3.0).float() + 1e-7 if bool((x == 0).any()) else (third * 0.3).float()


def undefined(x: torch.Tensor) -> torch.Tensor:
    return x[:, 0] * torch.nan


class Model(torch.nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


@pytest.mark.parametrize(
    ("function", "is_read", "n_recorded"),
    [(faintly, True, 2), (first, False, 0), (whole, True, 0), (by_another_way, False, 2), (undefined, False, 0)],
)
def test_the_operators_decide_where_rounding_could_explain(
    function: Callable[[torch.Tensor], torch.Tensor], is_read: bool, n_recorded: int
) -> None:
    model, observer = Model(function), InputObserver()
    with observer(model), torch.no_grad():
        model(torch.ones(1, 3))
    (plan,) = observer.plans(probe=False)
    lab = observer._lab(observer._watcher.store())
    (path,) = (leaf.path for leaf in plan.inputs)
    runs = [({path: x}, open_tree(model(x))) for x in (torch.ones(1, 3), ZEROS)]
    assert reads_difference(plan, lab, *runs, why="a test") is is_read
    assert lab.runs == n_recorded
