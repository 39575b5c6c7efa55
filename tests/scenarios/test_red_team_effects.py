"""Attacks on what a graph does beside giving a result: assertions, draws of random numbers, graphs inside graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from red_team import Attack, attack

Function = Callable[..., Any]


def of(function: Function) -> Callable[[], torch.nn.Module]:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return function(x)

    return Model


def images(*sizes: tuple[int, int], scale: float = 1.0) -> Callable[[], Sequence[tuple[Any, ...]]]:
    return lambda: [(torch.randn(*size, 4).abs() * scale,) for size in sizes]


def ids(*sizes: tuple[int, int], low: int = 0, high: int = 60) -> Callable[[], Sequence[tuple[Any, ...]]]:
    return lambda: [(torch.randint(low, high, size),) for size in sizes]


SHORT = ((2, 5), (3, 9), (4, 7))


# -- assertions


def sum_decides_in_short_calls(x: torch.Tensor) -> torch.Tensor:
    if x.shape[1] > 20:
        return x * 2
    return x * 2 if x.sum() > 0 else x * 3


def raises_for_outliers_in_long_calls(x: torch.Tensor) -> torch.Tensor:
    if x.shape[1] > 16 and bool((x.abs() > 4).any()):
        raise ValueError("outliers")
    return x * 2


def asserts_in_long_calls(x: torch.Tensor) -> torch.Tensor:
    if x.shape[1] > 16:
        torch._assert(bool((x < 4).all()), "too large")
    return x * 2


def asserts_another_bound_in_long_calls(x: torch.Tensor) -> torch.Tensor:
    limit = 50.0 if x.shape[1] > 16 else 5.0
    assert x.abs().max() < limit
    return x * 2


def checks_a_count_in_long_calls(x: torch.Tensor) -> torch.Tensor:
    n = int((x > 3).sum().item())
    torch._check(n < (100 if x.shape[1] > 16 else 2))
    return x * 2


def asserts_asynchronously_in_long_calls(x: torch.Tensor) -> torch.Tensor:
    if x.shape[1] > 16:
        torch._assert_async((x < 4).all(), "too large")
    return x + 1


# -- draws of random numbers


def second_of_two_draws(x: torch.Tensor) -> torch.Tensor:
    a, b = torch.rand(4), torch.rand(4)
    return x * (a if x.shape[1] != 40 else b)


def one_more_draw_that_nobody_reads(x: torch.Tensor) -> torch.Tensor:
    if x.shape[1] == 40:
        torch.rand(3)
    return x * torch.rand(4)


def another_draw_of_the_same_shape(x: torch.Tensor) -> torch.Tensor:
    noise = torch.randn(4) if x.shape[1] == 40 else torch.rand(4)
    return x + 0.0 * noise + torch.rand(4)


def a_draw_in_place(x: torch.Tensor) -> torch.Tensor:
    noise = torch.empty(4).uniform_()
    if x.shape[1] == 40:
        noise = noise.uniform_()
    return x * noise


# -- graphs inside of graphs


def inner_constant(x: torch.Tensor) -> torch.Tensor:
    pad = 41 if x.shape[1] > 20 else 40

    def inner(i: torch.Tensor) -> torch.Tensor:
        return i.masked_fill(i == pad, 0)

    def same(i: torch.Tensor) -> torch.Tensor:
        return i + 0

    def outer(i: torch.Tensor) -> torch.Tensor:
        return torch.cond(i.sum() > -10, inner, same, [i])

    return torch.cond(x.sum() > -20, outer, same, [x])


def inner_operator(x: torch.Tensor) -> torch.Tensor:
    is_long = x.shape[1] > 20

    def yes(i: torch.Tensor) -> torch.Tensor:
        return i.clamp(max=30) if is_long else i.clamp(max=31)

    def no(i: torch.Tensor) -> torch.Tensor:
        return i + 0

    return torch.cond(x.sum() > -20, yes, no, [x])


def inner_assertion(x: torch.Tensor) -> torch.Tensor:
    is_long = x.shape[1] > 20

    def yes(i: torch.Tensor) -> torch.Tensor:
        if is_long:
            torch._assert_async((i < 55).all(), "too large")
        return i + 1

    def no(i: torch.Tensor) -> torch.Tensor:
        return i + 0

    return torch.cond(x.sum() > -20, yes, no, [x])


def autocast_block(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", enabled=x.shape[1] > 20):
        return x @ x.mT


ATTACKS = [
    Attack(function.__name__, of(function), watched, fooling)
    for function, watched, fooling in (
        (sum_decides_in_short_calls, images((2, 30), (3, 40), (2, 25)), images((2, 10), (3, 20), scale=-1)),
        (raises_for_outliers_in_long_calls, images(*SHORT), images((2, 30), (2, 17), scale=10)),
        (asserts_in_long_calls, images(*SHORT), images((2, 30), (2, 17), scale=10)),
        (asserts_another_bound_in_long_calls, images((2, 30), (3, 40), (2, 25)), images((2, 10), (3, 16), scale=10)),
        (checks_a_count_in_long_calls, images((2, 30), (3, 40), (2, 25)), images((2, 10), (3, 16), scale=10)),
        (asserts_asynchronously_in_long_calls, images(*SHORT), images((2, 30), (2, 17), scale=10)),
        (second_of_two_draws, images(*SHORT), images((2, 40), (3, 41))),
        (one_more_draw_that_nobody_reads, images(*SHORT), images((2, 40), (3, 41))),
        (another_draw_of_the_same_shape, images(*SHORT), images((2, 40), (3, 41))),
        (a_draw_in_place, images(*SHORT), images((2, 40), (3, 41))),
        (inner_constant, ids(*SHORT), ids((2, 30), (3, 21), low=38, high=43)),
        (inner_operator, ids(*SHORT), ids((2, 30), (3, 21), low=20, high=60)),
        (inner_assertion, ids(*SHORT), ids((2, 30), (3, 21), low=50, high=60)),
        (autocast_block, images(*SHORT), images((2, 30), (3, 21))),
    )
]


@pytest.mark.one_in(6)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("one", ATTACKS, ids=str)
def test_no_verified_program_is_fooled(one: Attack) -> None:
    outcome = attack(one)
    assert outcome.lies == []
