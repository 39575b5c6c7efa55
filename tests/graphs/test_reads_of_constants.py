"""Calls that leave out a mask, in models that read values which are the same in each call, or use none of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from onlooker import InputObserver, Program, RejectedCallError
from onlooker.graphs.sides.operators_of_runs import used_steps
from onlooker.lab.recorder import Recorder

Factor = Callable[[torch.Tensor], float]


class Decoder(nn.Module):
    """A sum over the tokens so far, which without a mask is times a ``factor``."""

    def __init__(self, factor: Factor) -> None:
        super().__init__()
        self.factor = factor

    def forward(
        self, x: torch.Tensor, mask: torch.Tensor | None = None, past: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        whole = x if past is None else torch.cat([past, x], 1)
        shown = whole if mask is None else whole * mask[..., None]
        times = self.factor(whole) if mask is None else 1.0
        return shown.cumsum(1)[:, -x.shape[1] :] * times, whole


def of_a_distribution(whole: torch.Tensor) -> float:
    return torch.distributions.Normal(0, 1).loc.item() + 1


def unused(whole: torch.Tensor) -> float:
    special = whole == 1021
    _ = special & ~special
    return 1.0


def of_a_difference(whole: torch.Tensor) -> float:
    return 2.0 if (torch.tensor(60) - whole.shape[1]).item() < 0 else 1.0


def of_a_length(whole: torch.Tensor) -> float:
    return 2.0 if torch.tensor(whole.shape[1]).item() > 60 else 1.0


def through_a_view(whole: torch.Tensor) -> float:
    number = torch.tensor([0])
    view = number.view(1, 1)
    number.add_(whole.shape[1])
    return 2.0 if view.item() > 60 else 1.0


def set_at_a_place(whole: torch.Tensor) -> float:
    number = torch.tensor([0, 0])
    number[1] = whole.shape[1]
    return 2.0 if number.sum().item() > 60 else 1.0


def of_values(whole: torch.Tensor) -> float:
    number = torch.tensor(0.0)
    number.copy_(whole.abs().max())
    return 2.0 if number.item() > 60 else 1.0


def of_places(whole: torch.Tensor) -> float:
    return 2.0 if torch.tensor([1, 2])[: whole.shape[1] // 31].sum().item() > 2 else 1.0


def of_found_rows(whole: torch.Tensor) -> float:
    return 2.0 if (whole > 60).nonzero().shape[0] > 0 else 1.0


def program_of(model: nn.Module) -> Program:
    observer = InputObserver()
    with observer(model.eval()), torch.no_grad():
        for batch, length, before in ((2, 5, 0), (3, 7, 0), (2, 3, 5), (3, 6, 7)):
            cache = torch.randn(batch, before, 4) if before else None
            model(torch.randn(batch, length, 4), torch.ones(batch, before + length), cache)
    program = observer.export()
    program.verify()
    return program


def served(program: Program, model: nn.Module) -> list[bool]:
    """Which calls without a mask are served, all with the result of the model."""
    found = []
    for length, before, scale in ((4, 0, 1), (4, 9, 1), (1, 9, 1), (80, 3, 1), (4, 80, 1), (4, 9, 100)):
        x, past = scale * torch.randn(2, length, 4), torch.randn(2, before, 4) if before else None
        with torch.no_grad():
            expected = model(x, None, past)[0]
        try:
            torch.testing.assert_close(program(x, None, past)[0], expected)
        except RejectedCallError:
            found.append(False)
        else:
            found.append(True)
    return found


@pytest.mark.parametrize("factor", [of_a_distribution, unused])
def test_what_is_the_same_in_each_call_decides_nothing(factor: Factor) -> None:
    model = Decoder(factor)
    assert all(served(program_of(model), model))


@pytest.mark.parametrize(
    "factor",
    [of_a_difference, of_a_length, through_a_view, set_at_a_place, of_values, of_places, of_found_rows],
)
@pytest.mark.one_in(4)
def test_a_number_that_a_size_or_a_value_is_in_decides(factor: Factor) -> None:
    model = Decoder(factor)
    assert not all(served(program_of(model), model))


def test_what_is_written_through_memory_is_used() -> None:
    x, kept = torch.randn(4), torch.zeros(4)
    with Recorder() as recorder:
        out = torch.zeros(4)
        _ = x > 3
        out[1:].copy_(x[1:].clamp(max=2))
        kept.view(2, 2).add_(x.sign().view(2, 2))
        bool((x.floor() > 7).any())
    names = {str(function) for function, *_ in used_steps(recorder.steps, [out])}
    assert names >= {
        "aten.clamp.default",
        "aten.sign.default",
        "aten.floor.default",
        "aten._local_scalar_dense.default",
    }
    assert [step[1][1] for step in used_steps(recorder.steps, [out]) if str(step[0]) == "aten.gt.Scalar"] == [7]
