"""Calls that leave out tensors which every watched call passed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from onlooker import InputObserver, Program


class StartsWithTheEnd(nn.Module):
    """The last token of each row is its first one: ``squeeze()`` gives no row for a batch of 1."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.layer = nn.Embedding(20, 8), nn.Linear(8, 8)

    def forward(
        self,
        ids: torch.Tensor,
        mask: torch.Tensor | None = None,
        weight: torch.Tensor | None = None,
    ) -> torch.Tensor:
        last = ids.gather(1, ids.ne(1).sum(1, keepdim=True) - 1).squeeze()
        shifted = torch.zeros_like(ids)
        shifted[:, 1:], shifted[:, 0] = ids[:, :-1], last
        rows = self.table(shifted)
        for factor in (mask, weight):
            rows = rows if factor is None else rows * factor[..., None]
        return self.layer(rows)


@pytest.fixture(scope="module")
def program() -> Program:
    model, observer = StartsWithTheEnd().eval(), InputObserver()
    with torch.no_grad(), observer(model):
        model(torch.randint(2, 20, (2, 7)), torch.ones(2, 7), torch.ones(2, 7))
    return observer.export()


@pytest.mark.parametrize("names", [(), ("mask",), ("weight",), ("mask", "weight")])
@pytest.mark.parametrize("shape", [(2, 5), (1, 5), (1, 9)])
def test_a_batch_of_1_with_its_own_graph_leaves_out_as_much(
    program: Program, shape: tuple[int, int], names: tuple[str, ...]
) -> None:
    assert len(program.graphs) == 2
    ids = torch.randint(2, 20, shape)
    options = {name: torch.rand(shape).round() for name in names}
    torch.testing.assert_close(program(ids, **options), StartsWithTheEnd().eval()(ids, **options))
