"""What the search for graphs asked of the model stands in the plan, and ``explain`` prints it."""

from __future__ import annotations

from typing import Any

import torch

from onlooker import InputObserver, Program
from onlooker.core.experiment import FindingKind


class Branching(torch.nn.Module):
    """Long inputs are clamped; very long ones are refused."""

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
        if x.shape[1] > 24:
            raise ValueError("too long")
        out = x * 2 if x.shape[1] > 12 else x.clamp(-1, 1)
        return out if y is None else out + y


def exported(*calls: tuple[torch.Tensor, ...], **options: Any) -> Program:
    model, observer = Branching().eval(), InputObserver()
    with observer(model):
        for call in calls:
            model(*call)
    return observer.export(**options)


def test_sizes_of_the_other_side_are_in_the_explanation_of_their_axis() -> None:
    program = exported((torch.randn(2, 5),), (torch.randn(3, 7),), ranges={"x_dim_1": (1, 40)})
    text = program.plans[0].explain("x", 1)
    accepted = [line for line in text.splitlines() if "the other side of a condition: accepted" in line]
    refused = [line for line in text.splitlines() if "the other side of a condition: refused, ValueError" in line]
    assert any("x.shape[1] = 13" in line for line in accepted), text
    assert any("x.shape[1] = 25" in line for line in refused), text
    assert "sizes of 0 and 1: accepted" in text


def test_each_experiment_stands_there_once() -> None:
    program = exported((torch.randn(2, 5),), (torch.randn(3, 7),), ranges={"x_dim_1": (1, 40)})
    for plan in program.plans:
        asked = [probe for probe in plan.probes if probe.claim == "the other side of a condition"]
        assert asked
        assert len(set(asked)) == len(asked)


def test_the_experiments_of_another_plan_are_not_in_it() -> None:
    program = exported(
        (torch.randn(2, 5),), (torch.randn(3, 7),), (torch.randn(2, 5), torch.randn(2, 5, dtype=torch.float64))
    )
    groups = {plan.inputs: plan for plan in program.plans}
    for plan in groups.values():
        names = {path.path.root for probe in plan.probes for path in probe.axes}
        assert names <= {leaf.path.root for leaf in plan.inputs}


def test_an_experiment_has_the_sizes_of_the_symbols_of_its_plan() -> None:
    (plan, *_) = exported((torch.randn(2, 5),), (torch.randn(3, 7),), ranges={"x_dim_1": (1, 40)}).plans
    found = [plan.symbol_sizes(probe) for probe in plan.probes if probe.claim == "the other side of a condition"]
    assert None not in found
    assert all(set(sizes or ()) == {symbol.name for symbol in plan.symbols} for sizes in found)
    kinds = {probe.finding.kind for probe in plan.probes}
    assert kinds >= {FindingKind.ACCEPTED, FindingKind.REFUSED}
