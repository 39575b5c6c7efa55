"""A graph that a target cannot convert: one error with its sizes and the line, or a program without it where the rest
serves all watched calls.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import onlooker
from onlooker import InputObserver, Program
from onlooker.core.contract import Constraint, Contract, Origin, Region
from onlooker.core.errors import ExportError, OnlookerWarning, RejectedCallError
from onlooker.targets.refused import convert_or_leave_out, operator_in, refused_graph


class Sides(torch.nn.Module):
    """Long sequences need an operator that neither ONNX nor OpenVINO has."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] > 6:
            return torch.linalg.eigvals(x.mT @ x).real.sum(1) + x.sum()
        return x.cumsum(1).sum(1)[:, 0] + x.sum()


LINE = r"test_refused\.py:\d+ in forward: return torch\.linalg\.eigvals"
RANGES = {"batch": (1, 16), "x_dim_1": (1, 16)}


def exported(*lengths: int, **options: Any) -> Program:
    torch.manual_seed(0)
    observer, model = InputObserver(), Sides().eval()
    with observer(model):
        for batch, length in enumerate(lengths, 2):
            model(torch.randn(batch, length, 4))
    return observer.export(ranges=RANGES, **options)


@pytest.fixture(scope="module")
def short() -> Program:
    return exported(3, 5)


@pytest.fixture(scope="module")
def both() -> Program:
    return exported(3, 9)


@pytest.mark.parametrize("target", [pytest.param("onnx", marks=pytest.mark.slow), "openvino"])
def test_a_graph_that_no_watched_call_needs_is_left_out(short: Program, target: str, tmp_path: Path) -> None:
    assert len(short.graphs) == 2
    with pytest.warns(OnlookerWarning, match=rf"serves all watched calls.*x_dim_1 > 6.*{LINE}.*\[serves-less\]"):
        program = short.to(target)
    (graph,) = program.graphs
    assert graph.target == target
    assert any("left out" in note and "x_dim_1 > 6" in note and "eigvals" in note for note in graph.notes)
    assert "left out" in str(program.report)
    assert program.verify().verified, program.report
    with pytest.raises(RejectedCallError, match=r"x\.shape\[1\]"):
        program(torch.randn(2, 9, 4))
    program.save(tmp_path / "out")
    assert any("left out" in note for note in onlooker.load(tmp_path / "out").graphs[0].notes)
    assert short(torch.randn(2, 9, 4)).shape == (2,)


@pytest.mark.parametrize(("target", "name"), [("onnx", "ONNX"), ("openvino", "OpenVINO")])
def test_a_graph_that_a_watched_call_needs_is_one_error_of_ours(
    both: Program, target: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="onlooker")
    wanted = rf"x_dim_1 > 6.*cannot be converted to {name}: .*eig.*{LINE}.*other operators.*\[{target}-refused\]"
    with pytest.raises(ExportError, match=wanted) as caught:
        both.to(target)
    error = caught.value
    assert "ranges={'x_dim_1': (None, 6)}" in error.hint
    assert error.graph in {graph.name for graph in both.graphs}
    assert error.__cause__ is None
    assert error.__suppress_context__
    assert "Traceback" not in str(error)
    assert any(record.exc_info for record in caplog.records)


class Signs(torch.nn.Module):
    """Values decide between the two sides, and sizes do not tell them apart."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool((x > 0).all()):
            return torch.linalg.eigvals(x.mT @ x).real.sum(1)
        return x.cumsum(1).sum(1)[:, 0]


@pytest.mark.slow
def test_a_graph_that_values_of_a_watched_call_need_is_not_left_out() -> None:
    torch.manual_seed(0)
    observer, model = InputObserver(), Signs().eval()
    with observer(model):
        for sign, length in ((1, 3), (-1, 5), (-1, 6)):
            model(sign * (torch.rand(2, length, 4) + 1))
    program = observer.export(ranges="observed")
    assert len(program.graphs) > 1
    with pytest.raises(ExportError, match=r"eig.*\[onnx-refused\]"):
        program.to("onnx")


# -- without a converter


class AtOnce:
    """Converts all graphs at once, and does not say which one it refuses."""

    name = "at_once"

    def __init__(self, *refused: str) -> None:
        self.refused = refused

    def convert(self, graphs: Sequence[Any], **_: Any) -> list[Any]:
        if any(graph.name in self.refused for graph in graphs):
            names = ", ".join(graph.name for graph in graphs)
            raise ExportError(f"{names} cannot be converted: unknown", slug="at_once-refused")
        return list(graphs)


def test_the_refused_graphs_of_a_target_that_names_none_are_found_one_by_one(both: Program) -> None:
    first, second = both.graphs
    asked: list[list[str]] = []

    def serves(graphs: Sequence[Any]) -> bool:
        asked.append([graph.name for graph in graphs])
        return True

    target: Any = AtOnce(second.name)
    made, left_out = convert_or_leave_out(target, both.graphs, {}, serves)
    assert made == [first]
    assert left_out == [f"{second.name} cannot be converted: unknown"]
    assert asked == [[first.name]]
    with pytest.raises(ExportError, match="unknown"):
        convert_or_leave_out(target, both.graphs, {}, lambda _: False)
    with pytest.raises(ExportError, match="unknown"):
        convert_or_leave_out(AtOnce(first.name, second.name), both.graphs, {}, serves)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("formula", "ranges"),
    [
        ("n > 6", "{'n': (None, 6)}"),
        ("n >= 6", "{'n': (None, 5)}"),
        ("n < 6", "{'n': (6, None)}"),
        ("n <= 6", "{'n': (7, None)}"),
        ("n % 2 == 0", ""),
    ],
)
def test_the_sizes_to_keep_to_are_those_beyond_the_graph(short: Program, formula: str, ranges: str) -> None:
    contract = Contract((Region((Constraint(formula, Origin.MODEL),)),))
    said = ExportError("fails: no", slug="x-refused")
    error = refused_graph(replace(short.graphs[0], contract=contract), said)
    assert f"({formula}) fails: no" in error.message
    assert ("ranges=" in error.hint) is bool(ranges)
    assert ranges in error.hint


def test_the_operator_that_a_message_names_is_found_with_its_line(both: Program) -> None:
    graphs = [graph.artifact.graph for graph in both.graphs]
    found = [operator_in("no lowering for aten.linalg_eigvals.default here", graph) for graph in graphs]
    assert sum(map(bool, found)) == 1
    assert "in forward: return torch.linalg.eigvals" in "".join(found)
    assert operator_in("nothing is named", graphs[0]) == ""
