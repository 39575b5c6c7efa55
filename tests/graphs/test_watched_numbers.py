"""Sizes that Python makes numbers of: each watched call is served, also without its values at hand."""

from __future__ import annotations

from typing import ClassVar

import torch

from onlooker import InputObserver


class ByJoinedLength(torch.nn.Module):
    """Decides by the length of two tensors together, by a function that takes a plain int."""

    def forward(self, x: torch.Tensor, past: torch.Tensor | None = None) -> torch.Tensor:
        if past is not None:
            x = torch.cat([past, x], 1)
        if sum(map(int, bin(x.shape[1])[2:])) > 2:
            x = x.flip(1)
        return x.cumsum(1)


class ByTable(torch.nn.Module):
    """Scales by a number that differs for each length."""

    table: ClassVar = {3: 1.0, 4: 0.5, 5: 0.25, 6: 0.125, 7: 0.0625, 8: 2.0}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.table[x.shape[1]]


def test_each_watched_call_is_served_where_sizes_become_numbers() -> None:
    model, observer = ByJoinedLength().eval(), InputObserver()
    calls = [((torch.randn(2, n),), {}) for n in (5, 6, 7, 9)]
    calls += [((torch.randn(2, 2),), {"past": torch.randn(2, n)}) for n in (5, 7, 10, 11)]
    with torch.no_grad(), observer(model):
        for args, kwargs in calls:
            model(*args, **kwargs)
    program = observer.export()
    assert program.verify().verified
    for args, kwargs in calls:
        torch.testing.assert_close(program(*args, **kwargs), model(*args, **kwargs))


def test_a_table_by_length_has_a_graph_for_each_watched_length() -> None:
    model, observer = ByTable().eval(), InputObserver()
    calls = [torch.randn(2, n) for n in (3, 4, 5, 6, 7)]
    with torch.no_grad(), observer(model):
        for x in calls:
            model(x)
    program = observer.export()
    assert program.verify().verified
    for x in calls:
        torch.testing.assert_close(program(x), model(x))
