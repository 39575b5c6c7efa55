"""The other side of a guard is a graph of its own, and the report names the line of the model that asked."""

from __future__ import annotations

import logging
import operator
from pathlib import Path

import pytest
import torch

from onlooker import InputObserver
from onlooker.core.errors import ExportError


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


class Sided(torch.nn.Module):
    """Two paths of Python, by a size: no graph is right on both sides of the guard."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.cumsum(dim=1) if x.shape[1] > 6 else x.flip(1)


def test_the_other_side_of_a_guard_is_a_graph_of_its_own() -> None:
    model = Sided()
    observer = InputObserver()
    with observer(model):
        for length in (4, 5, 9, 12):
            model(rand(2, length))
    program = observer.export()
    assert len(program.graphs) == 2
    assert program.verify().verified, program.report
    for length in (2, 3, 6, 7, 20):
        x = rand(3, length)
        torch.testing.assert_close(program(x), model(x))


class Counted(torch.nn.Module):
    """A size becomes a number of Python."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.ones(operator.index(x.shape[0]), 1)  # the line of the size


class Valued(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = float(x.sum())
        return x * len(str(total))  # the line of the value


def line_of(comment: str) -> str:
    file = Path(__file__)
    number = next(
        i for i, line in enumerate(file.read_text().splitlines(), 1) if line.endswith(f"# the line of {comment}")
    )
    return f"{file.name}:{number} in forward: "


def test_the_line_of_a_guard_stands_in_the_report() -> None:
    model = Sided()
    observer = InputObserver()
    with observer(model):
        for length in (4, 9):
            model(rand(2, length))
    program = observer.export()
    needs = [text for graph in program.report.graphs for text in graph.needs]
    for condition in ("x_dim_1 <= 6", "x_dim_1 > 6"):
        assert any(text.startswith(f"{condition}, because of ") and "if x.shape[1] > 6" in text for text in needs)
    assert "if x.shape[1] > 6" in " ".join(program.report.text(full=True).split())  # a line may be wrapped


def test_the_line_of_a_silent_specialisation_stands_in_the_report() -> None:
    model = Counted()
    observer = InputObserver()
    with observer(model):
        model(rand(2, 3)), model(rand(4, 3))
    program = observer.export()
    program.verify()
    needs = [text for graph in program.report.graphs for text in graph.needs]
    assert any(line_of("the size") in text and " == " in text for text in needs)
    assert program.report.verified  # each watched size has a graph of its own


def test_the_line_of_a_value_stands_in_the_hint_of_the_error() -> None:
    model = Valued()
    observer = InputObserver()
    with observer(model):
        model(torch.ones(2, 3)), model(torch.ones(3, 4))
    with pytest.raises(ExportError) as caught:
        observer.export()
    assert caught.value.slug == "export-refused"
    assert line_of("the value") in caught.value.hint


def test_the_logger_of_torch_is_as_before() -> None:
    logger = logging.getLogger("torch.fx.experimental.symbolic_shapes")
    before = (logger.level, list(logger.filters), list(logger.handlers))
    test_the_line_of_a_guard_stands_in_the_report()
    assert (logger.level, list(logger.filters), list(logger.handlers)) == before
