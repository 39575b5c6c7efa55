"""Which axes of the inputs of a graph are only broadcast."""

from __future__ import annotations

import torch

from onlooker.proofs.broadcasts import Broadcasts


class Steps(torch.nn.Module):
    """Adds to a sum of the first input the second one."""

    def forward(self, count: int, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return x.sum(0) * count + bias


def test_a_number_among_the_inputs_has_a_place_of_its_own() -> None:
    program = torch.export.export(Steps(), (3, torch.randn(2, 4), torch.randn(4)))
    broadcasts = Broadcasts(program)
    assert not broadcasts.is_all_of({1: [0]})
    assert broadcasts.is_all_of({2: [0]})
    assert not broadcasts.is_all_of({0: [0]})
