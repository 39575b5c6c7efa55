"""Ints that count positions go on counting for other sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from onlooker import InputObserver, Plan
from onlooker.materialise.arguments import Calls


class Decoder(torch.nn.Module):
    def forward(self, ids: torch.Tensor, past: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return ids + past.sum(dim=1, keepdim=True) + positions


def watched(calls: list[tuple[torch.Tensor, ...]]) -> tuple[Plan, Any]:
    model, observer = Decoder(), InputObserver()
    with observer(model, store_n_calls=len(calls)):
        for args in calls:
            model(*args)
    (plan,) = observer.plans()
    return plan, observer._watcher.store().samples


def call(batch: int, length: int, past: int, positions: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.zeros(batch, length, dtype=torch.int64), torch.zeros(batch, past, dtype=torch.int64), positions


@pytest.mark.parametrize("rank", [1, 2])
def test_positions_begin_where_the_past_ends(rank: int) -> None:
    def positions(batch: int, length: int, past: int) -> torch.Tensor:
        counted = torch.arange(past, past + length)
        return counted if rank == 1 else counted.repeat(batch, 1)

    sizes = [(2, 4, 3), (3, 2, 7), (2, 6, 9)]
    plan, samples = watched([call(b, n, p, positions(b, n, p)) for b, n, p in sizes])
    named = {str(plan.leaf("past").shape[1]): 5, str(plan.leaf("ids").shape[1]): 3, str(plan.leaf("ids").shape[0]): 4}
    values = {path.code(): value for path, value in Calls(plan, samples).values(named).items()}
    assert values["positions"].tolist() == positions(4, 3, 5).tolist()


def test_what_does_not_count_is_grown_as_before() -> None:
    calls = [call(2, n, p, torch.full((n,), p)) for n, p in ((4, 3), (2, 7), (6, 9))]
    plan, samples = watched(calls)
    named = {symbol.name: 5 for symbol in plan.symbols}
    values = {path.code(): value for path, value in Calls(plan, samples).values(named).items()}
    assert len(set(values["positions"].tolist())) == 1
