"""Comparisons of sizes that a function of C++ takes as a bool."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from onlooker import InputObserver, RejectedCallError

Forward = Callable[[torch.Tensor], torch.Tensor]

LONG = 100


def causal(x: torch.Tensor) -> torch.Tensor:
    return functional.scaled_dot_product_attention(x, x, x, is_causal=x.shape[1] > 1)


def kept(x: torch.Tensor) -> torch.Tensor:
    return x.sum(1, keepdim=x.shape[1] > LONG)


def dropped(x: torch.Tensor) -> torch.Tensor:
    return functional.dropout(x, 0.5, training=x.shape[1] > LONG)


def joined(x: torch.Tensor) -> torch.Tensor:
    is_long = (x.shape[1] > LONG) & (x.shape[0] == 1)
    return x.cumsum(1).argsort(1, descending=is_long)


class Model(torch.nn.Module):
    """Computes with one of the functions above."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.function = forward

    def forward(self, x: torch.Tensor) -> Any:
        """The result of the function."""
        return self.function(x)


@pytest.mark.parametrize("forward", [causal, kept, dropped, joined])
@pytest.mark.one_in(2)
def test_a_comparison_of_sizes_is_given_as_a_bool(forward: Forward) -> None:
    model, observer = Model(forward).eval(), InputObserver()
    with observer(model):
        for batch, length in ((2, 5), (3, 7)):
            model(torch.randn(batch, length, 4))
    program = observer.export()
    assert program.verify().verified
    for batch, length in ((4, 9), (2, 2), (1, 6)):
        x = torch.randn(batch, length, 4)
        torch.testing.assert_close(program(x), model(x))


@pytest.mark.parametrize("forward", [kept, dropped, joined])
def test_the_other_answer_is_refused(forward: Forward) -> None:
    model, observer = Model(forward).eval(), InputObserver()
    with observer(model):
        for batch, length in ((2, 5), (3, 7)):
            model(torch.randn(batch, length, 4))
    program = observer.export()
    with pytest.raises(RejectedCallError, match=r"x\.shape\[1\]"):
        program(torch.randn(1, LONG + 1, 4))


def test_torch_takes_no_symbolic_bool() -> None:
    dynamic = {"x": {1: torch.export.Dim.DYNAMIC}}
    with pytest.raises(TypeError, match="must be bool, not SymBool"):
        torch.export.export(Model(kept), (torch.randn(2, 5, 4),), dynamic_shapes={"x": dynamic["x"]})
