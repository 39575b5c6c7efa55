"""What a call on the other side of a condition gets, as the report says it and as it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import onlooker
from onlooker import InputObserver, Program, RejectedCallError
from onlooker.contract.other_side import FateKind
from onlooker.core.contract import Origin
from onlooker.core.sizes.formula import negated
from onlooker.report.data import ConditionRow


class Sided(torch.nn.Module):
    """Clamped above 12 columns, refused above 24."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] > 24:
            raise ValueError("too long")
        return x.clamp(-1, 1) if x.shape[1] > 12 else x * 2


class Untraced(torch.nn.Module):
    """More than 40 columns have lines that torch.export does not get through."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] > 40:
            if torch.compiler.is_exporting():
                raise ValueError("not while it is exported")
            return x.clamp(-1, 1)
        return x * 2


class Steered(torch.nn.Module):
    """An int decides."""

    def forward(self, x: torch.Tensor, k: int = 1) -> torch.Tensor:
        return x * k if k > 4 else x.clamp(-1, 1) * k


def exported(model: torch.nn.Module, *calls: tuple[Any, ...], **options: Any) -> Program:
    observer = InputObserver()
    with observer(model.eval()):
        for call in calls:
            model(*call)
    return observer.export(**options)


@pytest.fixture(scope="module")
def sided() -> Program:
    calls = (torch.randn(2, 5),), (torch.randn(3, 7),)
    return exported(Sided(), *calls, ranges={"x_dim_1": (1, 40)})


def condition(program: Program, graph: int, formula: str) -> ConditionRow:
    return next(row for row in program.report.graphs[graph].conditions if row.formula == formula)


def test_the_other_side_of_a_branch_is_taken_by_the_other_graph(sided: Program) -> None:
    name = sided.plans[0].symbols[1].name
    row = condition(sided, 0, f"{name} <= 12")
    assert row.otherwise == f"{name} > 12"
    assert "test_other_side.py:" in row.line
    assert "x.clamp(-1, 1) if x.shape[1] > 12" in row.line
    (fate,) = row.fates
    assert (fate.kind, fate.graph) == (FateKind.TAKEN, sided.graphs[1].name)
    assert dict(fate.sizes)[name] > 12
    assert f"where {name} > 12: taken by graph {sided.graphs[1].name} (" in sided.report.text(full=True)


def test_the_model_itself_refuses_the_other_side(sided: Program) -> None:
    name = sided.plans[0].symbols[1].name
    row = condition(sided, 0, f"{name} <= 24")
    assert [fate.kind for fate in row.fates] == [FateKind.REFUSED_BY_MODEL]
    assert f"where {name} > 24: refused by the model itself (" in sided.report.text(full=True)


def test_what_was_not_traced_is_refused_by_the_program() -> None:
    program = exported(Untraced(), (torch.randn(2, 5),), (torch.randn(3, 7),))
    (row,) = program.report.graphs[0].conditions
    assert [fate.kind for fate in row.fates] == [FateKind.NOT_TRACED]
    assert "refused by this program: not traced (" in program.report.text(full=True)


PROGRAMS = {
    "sided": (Sided, [(torch.randn(2, 5),), (torch.randn(3, 7),)], {"ranges": {"x_dim_1": (1, 40)}}),
    "untraced": (Untraced, [(torch.randn(2, 5),), (torch.randn(3, 7),)], {}),
    "steered": (Steered, [(torch.randn(2, 5), 2), (torch.randn(3, 7), 3)], {}),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_call_gets_what_the_report_says(name: str) -> None:
    make, calls, options = PROGRAMS[name]
    model = make()
    program = exported(model, *calls, **options)
    n_fates = 0
    for graph, told in zip(program.graphs, program.report.graphs, strict=True):
        for row in told.conditions:
            for fate in row.fates:
                n_fates += 1
                arguments = call_of(graph.plan, dict(fate.sizes))
                assert outcome(model, program, arguments) == (fate.kind, fate.graph), (str(row), arguments)
    assert n_fates or not any(told.needs for told in program.report.graphs)


def call_of(plan: Any, sizes: dict[str, int]) -> dict[str, Any]:
    values = {}
    for leaf in plan.inputs:
        if leaf.is_tensor:
            values[leaf.path.root] = torch.randn([expression.evaluate(sizes) for expression in leaf.shape])
        else:
            values[leaf.path.root] = leaf.value.evaluate(sizes)
    return values


def outcome(model: torch.nn.Module, program: Program, arguments: dict[str, Any]) -> tuple[FateKind, str]:
    try:
        model(**arguments)
    except ValueError:
        with pytest.raises(RejectedCallError):
            program(**arguments)
        return FateKind.REFUSED_BY_MODEL, ""
    try:
        program(**arguments)
    except RejectedCallError:
        return FateKind.NOT_TRACED, ""
    (served,) = program.check([arguments]).served
    return FateKind.TAKEN, served[0]


def test_the_json_has_both_sides_and_the_evidence_of_what_was_dropped(sided: Program) -> None:
    data: Any = sided.report.to_dict()["graphs"]
    (row,) = [row for row in data[0]["conditions"] if row["condition"].endswith("<= 12")]
    assert row["otherwise"].endswith("> 12")
    assert row["origin"] == "model"
    assert row["line"]
    (side,) = row["other_side"]
    assert (side["outcome"], side["graph"]) == ("taken", sided.graphs[1].name)
    for graph, told in zip(sided.graphs, data, strict=True):
        assert [(one["condition"], one["evidence"], one["line"]) for one in told["evidence"]] == [
            (dropped.formula, dropped.evidence, dropped.line) for dropped in graph.contract.dropped
        ]
        assert {row["condition"] for row in told["conditions"]} == {
            constraint.formula
            for region in graph.contract.regions
            for constraint in region.constraints
            if constraint.origin is not Origin.BOUND or graph is sided.graphs[0]
        }


def test_a_loaded_program_says_the_same(sided: Program, tmp_path: Any) -> None:
    sided.save(tmp_path / "program")
    loaded = onlooker.load(tmp_path / "program")
    assert [graph.conditions for graph in loaded.report.graphs] == [graph.conditions for graph in sided.report.graphs]


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("n > 24", "n <= 24"),
        ("n * k == 8", "n * k != 8"),
        ("n % 4 != 0", "n % 4 == 0"),
        ("n < 3", "n >= 3"),
        ("n >= 3", "n < 3"),
        ("n > 3 or k == 1", "not (n > 3 or k == 1)"),
        ("2 < n < 5", "not (2 < n < 5)"),
    ],
)
def test_a_condition_and_its_other_side(text: str, other: str) -> None:
    assert negated(text) == other
