"""Verifying a large model makes some trials of every kind, a small model all of them."""

from __future__ import annotations

import pytest
import torch

from onlooker import InputObserver, Program
from onlooker.core.verdict import Focus


class Wide(torch.nn.Module):
    """As wide as it is told: the weights are what a run costs."""

    def __init__(self, width: int, vocabulary: int) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(vocabulary, width)
        self.out = torch.nn.Linear(width, width)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        y = self.embed(ids)
        if mask is not None:
            y = y * mask[..., None]
        y = y if ids.shape[1] > 6 else y * 2
        return self.out(y.cumsum(1))


def program_of(width: int, vocabulary: int) -> Program:
    torch.manual_seed(0)
    model, observer = Wide(width, vocabulary).eval(), InputObserver()
    with observer(model), torch.no_grad():
        for rows, length in ((1, 7), (2, 9)):
            model(torch.randint(0, vocabulary, (rows, length)), torch.ones(rows, length))
    return observer.export()


@pytest.fixture(scope="module")
def large() -> Program:
    return program_of(2048, 20_000)


def test_all_trials_of_a_small_model_are_made() -> None:
    tally = program_of(8, 50).verify()
    assert tally.verified
    assert tally.left_out == 0


@pytest.mark.slow
def test_some_trials_of_every_kind_are_made_of_a_large_model(large: Program) -> None:
    tally, small = large.verify(), program_of(8, 50).verify()
    assert tally.verified
    assert tally.counts.keys() == small.counts.keys()
    assert tally.counts[Focus.OBSERVED] == 2
    assert tally.left_out == sum(small.counts.values()) - sum(tally.counts.values())
    assert tally.left_out > 0
    assert "left out, since each run" in tally.summary
    assert large.report.to_dict()["left_out"] == tally.left_out


def test_what_is_asked_for_is_never_left_out(large: Program) -> None:
    tally = large.verify(sizes={"batch": [1, 2, 4, 5]})
    assert tally.counts[Focus.GIVEN] >= 4
    assert large.verify(trials=40).left_out == 0


def test_the_same_trials_are_made_each_time(large: Program) -> None:
    labels = [[check.label for check in large.verify(seed=seed).checks] for seed in (0, 1, 0)]
    assert labels[0] == labels[2]


class Sides(torch.nn.Module):
    """Decides by two sizes, and does as much for small ones as for large ones."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = torch.nn.functional.pad(x, (0, 2048 - x.shape[2], 0, 2048 - x.shape[1]))
        rows = wide.exp().sum((1, 2))[:, None, None]
        x = x * 2 if x.shape[1] < 9 else x
        return (x + 1 if x.shape[2] < 9 else x) + rows


def test_work_that_no_parameter_tells_is_counted_and_every_graph_has_a_trial() -> None:
    observer, model = InputObserver(), Sides().eval()
    with observer(model), torch.no_grad():
        model(torch.rand(2, 64, 48))
    program = observer.export()
    assert len(program.graphs) > 1
    tally = program.verify()
    assert tally.verified, tally.summary
    assert tally.left_out > 0
