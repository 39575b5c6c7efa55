"""Loops whose steps read ``x[t, other]``, where ``other`` is a tensor: one graph, as for ``x[t][other]``."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from onlooker import InputObserver, Program

LABELS = 4
Run = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Model(nn.Module):
    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run

    def forward(self, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return self.run(scores, labels)


def gold_scores(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The score of a path, as a conditional random field adds it up; ``scores`` is ``(steps, batch, labels)``."""
    scores, labels = scores.transpose(0, 1), labels.T
    steps, rows = labels.shape[0], torch.arange(labels.shape[1])
    changes = torch.arange(LABELS * LABELS).view(LABELS, LABELS).cos()
    score = scores[0, rows, labels[0]]
    for t in range(1, steps):
        score = score + changes[labels[t - 1], labels[t]] + scores[t, rows, labels[t]]
    return score


def index_in_the_middle(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    state = torch.zeros(scores.shape[0], 2)
    places = torch.tensor([3, 1])
    for t in range(labels.shape[1]):
        state = torch.tanh(state + scores[:, t, places])
    return state


def slice_between(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """``x[t, :, other]`` is ``(batch, 2)`` in torch, where numpy gives ``(2, batch)``."""
    scores, state = scores.transpose(0, 1), torch.zeros(scores.shape[0], 2)
    for t in range(labels.shape[1]):
        state = state * 0.5 + scores[t, :, torch.tensor([0, 2])]
    return state


def best_path(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The label that follows the one before, which each step computes."""
    scores, last, found = scores.transpose(0, 1), labels[:, 0], []
    rows = torch.arange(labels.shape[0])
    for t in range(labels.shape[1]):
        last = (scores[t] + scores[t, rows, last].unsqueeze(1)).cos().argmax(1)
        found.append(last)
    return torch.stack(found, 1)


def index_at_the_end(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Stays a loop: the rows of all steps are not along one dimension of the tensor."""
    state = torch.zeros(2)
    for t in range(labels.shape[1]):
        state = torch.tanh(state + scores[torch.tensor([0, 1]), t].sum(1))
    return state


def call(batch: int, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(batch + steps)
    scores = torch.randn(batch, steps, LABELS, generator=generator)
    return scores, torch.randint(0, LABELS, (batch, steps), generator=generator)


def exported(model: Model) -> Program:
    observer = InputObserver()
    with torch.no_grad(), observer(model):
        for batch, steps in ((2, 5), (3, 9)):
            model(*call(batch, steps))
    program = observer.export()
    assert program.verify().verified
    return program


@pytest.mark.parametrize(
    "run", [gold_scores, index_in_the_middle, slice_between, best_path], ids=lambda run: run.__name__
)
@pytest.mark.one_in(4)
def test_a_step_that_reads_at_its_index_and_at_others_is_one_of_a_scan(run: Run) -> None:
    model = Model(run).eval()
    program = exported(model)
    for batch, steps in ((2, 3), (4, 7), (3, 30)):
        torch.testing.assert_close(program(*call(batch, steps)), model(*call(batch, steps)))
    assert any("is a scan of torch" in note for graph in program.graphs for note in graph.notes)


@pytest.mark.slow
def test_an_index_after_another_one_stays_a_loop_and_says_so() -> None:
    model = Model(index_at_the_end).eval()
    program = exported(model)
    notes = [note for graph in program.graphs for note in graph.notes if "no scan of torch" in note]
    assert notes
    assert all("together with another index" in note for note in notes)
    for batch, steps in ((2, 5), (3, 9)):
        torch.testing.assert_close(program(*call(batch, steps)), model(*call(batch, steps)))
