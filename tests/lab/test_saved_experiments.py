"""Experiments and blind spots are values that a folder holds, and that a report prints."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from onlooker import InputObserver, load
from onlooker.core.experiment import BlindKind, BlindSpot, Experiment, Finding, FindingKind, shortened
from onlooker.core.path import Name
from onlooker.core.path import Path as LeafPath
from onlooker.core.spec import Axis

X = LeafPath((Name("x"),))
AXES = tuple(Axis(X, dim) for dim in range(6))


class OfOtherShape(torch.nn.Module):
    """Has a mask of a shape that nobody would guess."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return x.cumsum(1) if mask is None else x.cumsum(1) * mask.reshape(7, 7, 7).sum()


@pytest.mark.parametrize("budget", [2, 512])
def test_a_saved_plan_has_the_same_experiments_and_blind_spots(tmp_path: Path, budget: int) -> None:
    model, observer = OfOtherShape(), InputObserver()
    with observer(model):
        for length in (3, 5):
            model(torch.rand(1, length))
    program = observer.export(budget=budget)
    program.save(tmp_path / "program")
    found = load(tmp_path / "program").plans
    assert [plan.probes for plan in found] == [plan.probes for plan in program.plans]
    assert [plan.blind for plan in found] == [plan.blind for plan in program.plans]
    assert any(isinstance(spot, BlindSpot) for plan in found for spot in plan.blind)


TEXTS = {
    Experiment(AXES[:1], (2,), Finding(FindingKind.ACCEPTED), "probe 0"): "probe 0 (x.shape[0] = 2): accepted",
    Experiment(AXES[:1], (2,), Finding(FindingKind.UNREAD)): "a probe (x.shape[0] = 2): nothing reads it",
    Experiment((), (), Finding(FindingKind.CONFIRMED, "as ones"), claim="mask may be left out", argument="mask"): (
        "a probe: mask may be left out: confirmed, as ones"
    ),
}


@pytest.mark.parametrize("experiment", TEXTS, ids=TEXTS.values())
def test_an_experiment_prints_what_was_done_and_found(experiment: Experiment) -> None:
    assert str(experiment) == TEXTS[experiment]


def test_an_experiment_is_about_its_axes_or_its_argument() -> None:
    finding = Finding(FindingKind.ACCEPTED)
    assert Experiment(AXES[:1], (2,), finding, argument="x").is_about(AXES[0])
    assert not Experiment(AXES[:1], (2,), finding, argument="x").is_about(AXES[1])
    assert Experiment((), (), finding, argument="x").is_about(AXES[1])
    assert not Experiment((), (), finding).is_about(AXES[1])


SPOTS = {
    BlindSpot(BlindKind.BUDGET, AXES[:2], limit="5 runs"): (
        "the budget of 5 runs ended before x.shape[0], x.shape[1] could be probed: raise budget=, or watch other sizes"
    ),
    BlindSpot(BlindKind.BUDGET, detail="every relation was tested", limit="2 seconds"): (
        "the budget of 2 seconds ended before every relation was tested: raise budget=, or watch other sizes"
    ),
    BlindSpot(BlindKind.MASK_NEVER_PASSED, argument="mask"): (
        "mask was never passed, and a mask of ones changes the result: run one padded batch"
    ),
}


@pytest.mark.parametrize("spot", SPOTS, ids=SPOTS.values())
def test_a_blind_spot_prints_what_is_unknown_and_the_run_that_would_tell(spot: BlindSpot) -> None:
    assert str(spot) == SPOTS[spot]


def test_many_axes_are_shortened() -> None:
    assert shortened(AXES) == "x.shape[0], x.shape[1], x.shape[2], 3 more"
