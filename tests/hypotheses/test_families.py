"""The families stand in one tuple: a new idea is one class and one line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from onlooker import InputObserver, Plan
from onlooker.hypotheses import families
from onlooker.hypotheses.draft import Draft
from onlooker.hypotheses.family import Family


class Linearity(Family):
    """A toy idea: twice the input gives twice the output."""

    question = "is the model linear?"
    all_tested = "linearity was tested"
    most_runs = 2

    def drafts(self) -> Iterator[Draft]:
        """The draft with a note."""
        arguments = self._samples[0].arguments()
        once = self._lab.run(arguments, why="as it was", memo=True)
        twice = self._lab.run({"x": 2 * arguments["x"]}, why="twice as much")
        holds = torch.equal(2 * once.leaves[0], twice.leaves[0])
        if self._lab.record_claim("the model is linear", holds, argument="x"):
            yield replace(self._draft, notes=(*self._draft.notes, "the model is linear"))


class Greedy(Linearity):
    """Runs the model until its share ends, and has found something before."""

    most_runs = 3

    def drafts(self) -> Iterator[Draft]:
        """A draft after each run."""
        draft = self._draft
        for number in range(100):
            self._lab.run({"x": torch.full((2, 3), float(number))}, why="greed")
            draft = replace(draft, notes=(*draft.notes, f"run {number}"))
            yield draft


class Scale(torch.nn.Module):
    def __init__(self, factor: float = 4.0, offset: float = 0.0) -> None:
        super().__init__()
        self.factor, self.offset = factor, offset

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor + self.offset


def plan_of(model: torch.nn.Module, **options: object) -> Plan:
    observer = InputObserver()
    with observer(model):
        model(torch.ones(2, 3))
    (plan,) = observer.plans(**options)  # type: ignore[arg-type]
    return plan


@pytest.mark.parametrize(("offset", "holds"), [(0.0, True), (1.0, False)])
def test_a_new_family_is_one_class_and_one_line(monkeypatch: pytest.MonkeyPatch, offset: float, holds: bool) -> None:
    monkeypatch.setattr(families, "FAMILIES", (*families.FAMILIES, Linearity))
    plan = plan_of(Scale(offset=offset))
    assert ("the model is linear" in plan.notes) is holds
    verdict = "confirmed" if holds else "refuted"
    assert f"a probe: the model is linear: {verdict}." in plan.explain("x", 0).splitlines()
    assert str(plan.leaf("x").shape[0]) == "batch"  # the other families are as before


def test_a_family_whose_share_ends_keeps_what_it_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "FAMILIES", (Greedy, Linearity))
    plan = plan_of(Scale())
    assert plan.notes == ("run 0", "run 1", "run 2", "the model is linear")
    (spot,) = plan.blind
    assert "before linearity was tested" in str(spot)


@pytest.mark.parametrize("options", [{"probe": False}, {"budget": 0}])
def test_without_probing_no_family_runs_the_model(monkeypatch: pytest.MonkeyPatch, options: dict[str, object]) -> None:
    monkeypatch.setattr(families, "FAMILIES", (*families.FAMILIES, Linearity))
    plan = plan_of(Scale(), **options)
    assert not plan.notes
    assert not plan.blind
    assert [str(size) for size in plan.leaf("x").shape] == ["2", "3"]


def test_every_family_says_its_question_and_its_share() -> None:
    for family in families.FAMILIES:
        assert family.question.endswith("?")
        assert family.__doc__
        if issubclass(family, Family):
            assert family.most_runs >= 0
