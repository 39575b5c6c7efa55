"""Calls with and without a mask of attention have one graph, without a run of both."""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import pytest
import torch
from torch import nn

from onlooker import InputObserver
from onlooker.graphs import identity

Attend = Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]


class Attention(nn.Module):
    def __init__(self, attend: Attend) -> None:
        super().__init__()
        self.attend, self.layer = attend, nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return self.attend(self.layer(x)[:, None], mask)


def usual(heads: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Without a mask there is none; no row is hidden altogether."""
    whole = None if mask is None else mask.bool()[:, None, None, :]
    return nn.functional.scaled_dot_product_attention(heads, heads, heads, attn_mask=whole)


def added(heads: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    whole = None if mask is None else (1.0 - mask[:, None, None, :].float()) * -1e4
    return nn.functional.scaled_dot_product_attention(heads, heads, heads, attn_mask=whole)


def looking_back(heads: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    length = heads.shape[2]
    whole = torch.ones(length, length, dtype=torch.bool).tril()
    if mask is not None:
        whole = whole & mask.bool()[:, None, None, :]
    return nn.functional.scaled_dot_product_attention(heads, heads, heads, attn_mask=whole)


def scores_of(heads: torch.Tensor, hidden: torch.Tensor | None) -> torch.Tensor:
    """Attention by single operators, ``hidden`` being added to the scores."""
    scores = heads @ heads.transpose(-1, -2)
    if hidden is not None:
        scores = scores + hidden
    return scores.softmax(-1) @ heads


def in_operators(heads: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    hidden = None if mask is None else (1.0 - mask[:, None, None, :].float()) * -1e4
    return scores_of(heads, hidden)


def looking_back_in_operators(heads: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    length = heads.shape[2]
    whole = torch.ones(length, length, dtype=torch.bool).tril().expand(len(heads), 1, -1, -1)
    if mask is not None:
        whole = whole & mask.bool()[:, None, None, :]
    return scores_of(heads, torch.where(whole, 0.0, -1e4))


def filled(heads: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    scores = heads @ heads.transpose(-1, -2)
    if mask is not None:
        scores = scores.masked_fill(mask[:, None, None, :] == 0, -1e4)
    return scores.softmax(-1) @ heads


def chosen(heads: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    scores = heads @ heads.transpose(-1, -2)
    if mask is not None:
        scores = torch.where(mask.bool()[:, None, None, :], scores, torch.full_like(scores, -1e4))
    return scores.softmax(-1) @ heads


def multiplied(heads: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """The mask is multiplied with as well."""
    attended = usual(heads, mask)
    return attended if mask is None else attended * mask[:, None, :, None]


def divided(heads: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """The mask divides as well: ones stand for none in another way."""
    attended = usual(heads, mask)
    return attended if mask is None else attended / (mask[:, None, :, None] + 1).float().log2()


def thrice_as_much(heads: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """No number stands for a factor of 1."""
    return heads if mask is None else heads * (mask[:, None, :, None] + 2)


def watched(attend: Attend) -> tuple[Attention, InputObserver]:
    torch.manual_seed(0)
    model, observer = Attention(attend).eval(), InputObserver()
    with torch.no_grad(), observer(model):
        for rows, length in ((2, 5), (3, 7)):
            mask = torch.ones(rows, length, dtype=torch.int64)
            mask[0, -2:] = 0
            model(torch.rand(rows, length, 4), mask)
    return model, observer


@pytest.mark.parametrize(
    "attend",
    [
        usual,
        added,
        looking_back,
        in_operators,
        looking_back_in_operators,
        filled,
        chosen,
        multiplied,
    ],
)
def test_a_mask_of_ones_is_no_mask_for_all_values(attend: Attend) -> None:
    model, observer = watched(attend)
    with mock.patch.object(identity, "_difference_at", side_effect=AssertionError):
        program = observer.export()
    assert len(program.graphs) == 1
    x = torch.rand(4, 9, 4)
    torch.testing.assert_close(program(x), model(x))
    assert program.verify().verified


def test_a_mask_that_is_read_elsewhere_is_compared_by_numbers() -> None:
    model, observer = watched(divided)
    with mock.patch.object(identity, "_difference_at", wraps=identity._difference_at) as runs:
        program = observer.export()
    assert runs.called
    x, mask = torch.rand(4, 9, 4), torch.ones(4, 9, dtype=torch.int64)
    for call in ((x,), (x, mask)):
        torch.testing.assert_close(program(*call), model(*call))


def test_a_factor_that_is_no_1_is_not_left_out() -> None:
    model, observer = watched(thrice_as_much)
    program = observer.export()
    x, mask = torch.rand(4, 9, 4), torch.ones(4, 9, dtype=torch.int64)
    assert len(program.graphs) == 2
    for call in ((x,), (x, mask)):
        torch.testing.assert_close(program(*call), model(*call))


class SumsWithoutNan(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return x.nansum(-1) if mask is None else (x * mask).sum(-1)


def test_an_operator_that_leaves_out_nan_is_no_product_with_ones() -> None:
    observer, model = InputObserver(), SumsWithoutNan()
    with torch.no_grad(), observer(model):
        model(torch.rand(2, 6), torch.ones(2, 6))
        model(torch.rand(3, 5))
    program = observer.export()
    assert len(program.graphs) == 2
    assert program.verify().verified
    x = torch.tensor([[1.0, float("nan"), 3.0]])
    for call in ((x,), (x, torch.ones(1, 3))):
        torch.testing.assert_close(program(*call), model(*call), equal_nan=True)


class Means(nn.Module):
    """Without a mask torch itself sums, in float32 for numbers of 16 bits, and nothing is the mean of no number."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        if mask is None:
            return x.mean(1)
        shown = mask[..., None].to(x.dtype)
        return (x * shown).sum(1) / shown.sum(1).clamp(min=1e-4)


class Variances(nn.Module):
    """With a mask the variance is that of moments, of which little is left far from 0."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        if mask is None:
            return x.var(1, correction=0)
        shown = mask[..., None]
        mean, square = ((one * shown).sum(1) / shown.sum(1) for one in (x, x * x))
        return square - mean**2


@pytest.mark.parametrize(
    ("model", "dtype", "calls"),
    [
        (Means(), torch.float16, [torch.full((1, 100, 4), 1000.0), torch.full((1, 300, 4), -400.0)]),
        (Means(), torch.float32, [torch.rand(2, 0, 4), torch.rand(2, 3, 4)]),
        (Variances(), torch.float32, [torch.rand(2, 9, 4) * 0.1 + 300, torch.rand(2, 9, 4)]),
    ],
)
def test_ones_stand_for_no_mask_only_where_all_numbers_are_the_same(
    model: nn.Module, dtype: torch.dtype, calls: list[torch.Tensor]
) -> None:
    observer = InputObserver()
    with torch.no_grad(), observer(model):
        model(torch.randn(2, 5, 4).to(dtype))
        model(torch.randn(3, 7, 4).to(dtype), torch.ones(3, 7, dtype=dtype))
    program = observer.export()
    assert len(program.graphs) == 2
    assert program.verify().verified
    for x in calls:
        torch.testing.assert_close(program(x.to(dtype)), model(x.to(dtype)), equal_nan=True)
