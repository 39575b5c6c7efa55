"""A small model whose layers are stored in every precision, and its program with other weights."""

from __future__ import annotations

from dataclasses import replace

import torch

from onlooker import InputObserver, Program
from onlooker.trace.torch_run import runner_of

State = dict[str, torch.Tensor]


class Mixed(torch.nn.Module):
    """A convolution, two square layers and a head: x is (batch, 8, length), the result (batch, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv1d(8, 64, 3, padding=1)
        self.first = torch.nn.Linear(64, 64)
        self.second = torch.nn.Linear(64, 64)
        self.head = torch.nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = torch.relu(self.conv(x)).mean(2)
        return self.head(torch.relu(self.second(torch.relu(self.first(rows)))))


def program_of_mixed() -> Program:
    """The program of six watched calls, whose values are kept."""
    torch.manual_seed(0)
    model, observer = Mixed().eval(), InputObserver()
    with observer(model, keep=64), torch.no_grad():
        for batch, length in ((2, 5), (3, 9), (4, 6), (6, 7), (5, 12), (9, 8)):
            model(torch.randn(batch, 8, length))
    return observer.export()


def with_weights(program: Program, changed: State) -> Program:
    """The program with other numbers in some of its weights."""
    (graph,) = program.graphs
    made = graph.artifact._update(
        graph.artifact.graph_module,
        graph.artifact.graph_signature,
        state_dict={**graph.artifact.state_dict, **changed},
    )
    run = runner_of(made, tuple(graph.names.values()))
    return Program(program._program.with_graphs([replace(graph, artifact=made, run=run)]))
