"""An int that varies is a dynamic input; one that steers the Python of the model gives a graph for each value."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from onlooker import InputObserver, Program, RejectedCallError


class Cuts(nn.Module):
    """Keeps the last elements, or all: any count but 0 is the same graph."""

    def forward(self, x: torch.Tensor, n: int = 0) -> torch.Tensor:
        return x[:, -n:] if n else x.cumsum(1)


class Loops(nn.Module):
    """torch bakes in how often it loops, and the steps are not alike."""

    def forward(self, x: torch.Tensor, n: int = 1) -> torch.Tensor:
        for step in range(n):
            x = x * 2 if step % 2 else x + 1
        return x


class Indexes(nn.Module):
    """As models of transformers cut their logits: a symbolic int is an int for ``isinstance``."""

    def forward(self, x: torch.Tensor, n: int | torch.Tensor = 0) -> torch.Tensor:
        return x[:, slice(-n, None) if isinstance(n, int) else n, None]


class Scales(nn.Module):
    """Computes with the int alone: it stays dynamic."""

    def forward(self, x: torch.Tensor, n: int = 2) -> torch.Tensor:
        return x * n + 1


def exported(model: nn.Module, *values: int) -> Program:
    observer = InputObserver()
    with observer(model), torch.no_grad():
        for number, value in enumerate(values):
            model(torch.randn(2 + number, 8 + number), n=value)
    return observer.export()


@pytest.mark.parametrize(
    ("model", "values", "counts"),
    [
        (Cuts(), (2, 3, 0), ["", "0"]),
        (Loops(), (1, 3, 2), ["1", "3", "2"]),
        (Indexes(), (1, 3, 0), ["", "0"]),
        (Scales(), (3, 5, 4), [""]),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
@pytest.mark.one_in(2)
def test_each_value_that_was_seen_is_served(model: nn.Module, values: tuple[int, ...], counts: list[str]) -> None:
    program = exported(model, *values)
    assert {graph.name for graph in program.graphs} >= {f"main_n_{n}" if n else "main" for n in counts if n != "0"}
    for value in values:
        for shape in ((1, 9), (5, 12)):
            x = torch.randn(shape)
            torch.testing.assert_close(program(x, n=value), model(x, n=value))
    assert program.verify().verified


def test_another_value_is_refused_and_the_report_says_so() -> None:
    program = exported(Loops(), 1, 3)
    with pytest.raises(RejectedCallError, match="n is always 1, the call has 2"):
        program(torch.randn(2, 8), n=2)
    torch.testing.assert_close(program(torch.ones(2, 8)), 2 * torch.ones(2, 8))  # the default of n was seen
    assert any(text.startswith("only n = 1 or 3 served") for text in program.report.blind)


def test_the_values_that_most_calls_had_get_a_graph() -> None:
    program = exported(Loops(), *range(14, 0, -1), 1)
    names = [graph.name for graph in program.graphs]
    assert names[0] == "main_n_1"
    assert {name for name in names if name.startswith("main_n_")} >= {"main_n_1", "main_n_14"}
    assert any("were seen too, and are graphs too many" in text for text in program.report.blind)


class Chooses(nn.Module):
    """A number chooses the function, and Python looks it up."""

    def forward(self, x: torch.Tensor, n: int = 0) -> torch.Tensor:
        functions = [torch.sin, torch.cos, torch.exp, torch.tanh, torch.abs, torch.neg, torch.square] * 3
        return functions[n](x)


def test_each_of_several_values_is_served() -> None:
    model, observer = Chooses(), InputObserver()
    with observer(model):
        for value in range(7):
            model(torch.randn(9 - value, 4), n=value)
    program = observer.export()
    assert program.verify().verified
    assert all(call.holds for call in program.check(program.recording).calls)
    assert sum(graph.served_calls for graph in program.report.graphs) == program.report.calls


@pytest.mark.slow
def test_a_watched_call_that_no_graph_takes_is_no_success() -> None:
    """Also where its values were not kept: more values than graphs are made for."""
    program = exported(Chooses(), *range(20))
    tally = program.verify()
    refused = [call.index for call in program.check(program.recording).calls if not call.holds]
    assert refused
    failed = {check.label for check in tally.checks if not check.passed}
    assert failed >= {f"call {index}" for index in refused}
    assert not tally.verified
    assert not program.report.verified
    assert sum(graph.served_calls for graph in program.report.graphs) == program.report.calls - len(refused)


def test_an_int_that_is_the_size_of_a_tensor_is_no_constant() -> None:
    class Padded(nn.Module):
        def forward(self, x: torch.Tensor, length: int) -> torch.Tensor:
            return nn.functional.pad(x, (0, length - x.shape[1])) + torch.arange(length)

    observer, model = InputObserver(), Padded()
    with observer(model):
        for length in (5, 7):
            model(torch.randn(2, length), length)
    program = observer.export()
    assert [graph.name for graph in program.graphs] == ["main"]
    x = torch.randn(3, 9)
    torch.testing.assert_close(program(x, 9), model(x, 9))
