"""Graphs of one model are compared by what is used of them."""

from __future__ import annotations

import pytest
import torch

import onlooker


class Counting(torch.nn.Module):
    """Counts the parts of its input, and uses the first one or none."""

    def __init__(self, taken: bool) -> None:
        super().__init__()
        self.taken = taken

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = x.chunk(8, 1)
        out = x.relu() if 5 < len(parts) < 8 else x + 1
        return out + parts[0].sum() if self.taken else out


@pytest.mark.parametrize("taken", [False, True])
def test_a_graph_takes_no_part_that_it_does_not_use(taken: bool) -> None:
    model, observer = Counting(taken), onlooker.InputObserver()
    with observer(model):
        for rows, length in ((1, 48), (1, 3)):
            model(torch.randn(rows, length))
    program = observer.export()
    assert program.verify().verified
    served = 0
    for rows in (1, 2, 9):
        for length in range(1, 30):
            call = torch.randn(rows, length)
            if program.check([((call,), {})]).holds:
                torch.testing.assert_close(program(call), model(call))
                served += 1
            else:
                with pytest.raises(onlooker.RejectedCallError):
                    program(call)
    assert served > 10
    parts = [node for graph in program.graphs for node in graph.artifact.graph.nodes if "chunk" in node.name]
    assert all(node.users for node in parts)
