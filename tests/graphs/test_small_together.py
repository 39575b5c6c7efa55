"""A region in which a size is 1 only beside another small one: graphs are tried at both together."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from onlooker import InputObserver, RejectedCallError


class Branches(torch.nn.Module):
    """As many rows as columns at most, or a path of its own: a region without general sizes at one column."""

    def __init__(self, of: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.of = of

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.of(x * 2) if x.shape[0] <= x.shape[1] else x


OF_SMALL: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda x: x.sum(1),
    "squeeze": lambda x: x.squeeze(1),
    "squeeze all": lambda x: x.squeeze(),
    "numel": lambda x: x + x.numel(),
    "broadcast": lambda x: x + x[:, :1].expand(-1, max(x.shape[1] - 1, 1)).sum(1, keepdim=True),
}


@pytest.mark.parametrize("of", OF_SMALL.values(), ids=OF_SMALL)
@pytest.mark.one_in(2)
def test_a_region_that_has_one_column_beside_one_row_alone(of: Callable[[torch.Tensor], torch.Tensor]) -> None:
    torch.manual_seed(0)
    model, observer = Branches(of), InputObserver()
    with observer(model):
        for rows, columns in ((2, 5), (3, 7), (4, 6), (6, 4)):
            model(torch.randn(rows, columns))
    program = observer.export()
    assert program.verify().verified
    n_served = 0
    for rows, columns in ((0, 0), (0, 1), (1, 0), (1, 1), (2, 1), (1, 2), (0, 3), (5, 5)):
        call = torch.randn(rows, columns)
        try:
            got = program(call)
        except RejectedCallError:
            continue
        n_served += 1
        torch.testing.assert_close(got, model(call), rtol=0, atol=0)
    if of is OF_SMALL["sum"]:
        assert n_served >= 5
