"""The table of experiments: one row each, as text, data and HTML."""

from __future__ import annotations

import json

import pytest
import torch

from onlooker import InputObserver, Program
from onlooker.report.experiments import Experiments, experiments_of


class Scaled(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


@pytest.fixture(scope="module")
def program() -> Program:
    model, observer = Scaled(), InputObserver()
    with observer(model):
        model(torch.ones(2, 3))
        model(torch.ones(2, 4))
    return observer.export()


def test_each_experiment_is_a_row_with_what_was_changed_and_found(program: Program) -> None:
    table = program.experiments
    probes = [probe for plan in program.plans for probe in plan.probes]
    assert probes
    assert len(table) == len(set(probes))
    batch = [row for row in table if any(text.startswith("x.shape[0] = ") for text in row.changed)]
    assert "accepted" in {row.finding for row in batch}
    assert all(text in str(table) for row in batch for text in row.changed)


def test_plans_of_one_search_share_their_experiments(program: Program) -> None:
    assert len(experiments_of([*program.plans, *program.plans])) == len(program.experiments)


def test_the_table_goes_into_json_and_into_a_page(program: Program) -> None:
    rows = program.experiments.to_dict()
    assert json.loads(json.dumps(rows)) == rows
    assert set(rows[0]) == {"plan", "changed", "claim", "finding", "detail", "label"}
    page = program.experiments._repr_html_()
    assert all(row["finding"] in page for row in rows)


def test_the_short_text_counts_what_was_found(program: Program) -> None:
    assert repr(program.experiments).startswith("<Experiments: ")
    assert "accepted" in repr(program.experiments)
    assert repr(Experiments(())) == "<Experiments: none>"
    assert isinstance(program.experiments[:1], Experiments)
