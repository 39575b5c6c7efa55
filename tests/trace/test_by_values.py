"""A trace that decides by real values computes them beside the symbolic ones."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from onlooker import InputObserver, RejectedCallError


class Frames(nn.Module):
    """The end of each frame of some videos, in ints that torch adds up in a wider dtype by itself."""

    def forward(self, counts: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        if bool((scale > 5).any()):
            return scale
        ends = torch.repeat_interleave(2 * counts, counts).cumsum(0, dtype=torch.int32)
        return ends * scale.sum()


def test_sums_in_ints_of_another_width_are_traced_beside_a_branch_on_values() -> None:
    model, observer = Frames(), InputObserver()
    with observer(model):
        for counts in ([1, 2, 3], [2, 2], [3, 1, 2, 2]):
            model(torch.tensor(counts), torch.rand(2 * len(counts)))
    program = observer.export()
    counts, scale = torch.tensor([4, 1, 5, 2, 2]), torch.rand(10)
    torch.testing.assert_close(program(counts, scale), model(counts, scale))
    with pytest.raises(RejectedCallError):
        program(counts, 9 * torch.ones(10))
