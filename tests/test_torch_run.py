"""The graph of a program is called without the pytrees of torch's module: same results, same refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from onlooker.export.torch_conditions import conditions_of

from onlooker import InputObserver
from onlooker.trace.torch_run import runner_of


class Pair(torch.nn.Module):
    """Two tensors and an int, with a weight and a buffer that it writes."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor([2.0, 3.0]))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor, y: torch.Tensor, n: int) -> tuple[torch.Tensor, ...]:
        self.count.add_(1)
        return x * self.scale + n, y - x, y


def exported(check: bool = True) -> Any:
    batch = torch.export.Dim("batch", min=3)
    shapes = {"x": {0: batch}, "y": {0: batch}, "n": torch.export.Dim.DYNAMIC}
    inputs = {"x": torch.ones(5, 2), "y": torch.ones(5, 2), "n": 4}
    program = torch.export.export(Pair(), (), inputs, dynamic_shapes=shapes, strict=False)
    if not check:
        program._example_inputs = None  # then torch makes no function of the guards
    return program


@pytest.mark.parametrize("names", [("x", "y", "n"), ("n", "y", "x")], ids=str)
@pytest.mark.parametrize("check", [True, False])
def test_results_are_those_of_the_module_in_any_order_of_the_names(names: tuple[str, ...], check: bool) -> None:
    program = exported(check)
    inputs = {"x": torch.randn(7, 2), "y": torch.randn(7, 2), "n": 9}
    run = runner_of(program, names)
    with torch.no_grad():
        expected = program.module()(**inputs)
        got = run([inputs[name] for name in names])
    assert type(got) is type(expected) is tuple
    torch.testing.assert_close(got, expected)
    assert got[2] is inputs["y"]


def test_guards_and_ranges_refuse_as_they_do_in_the_module() -> None:
    run = runner_of(exported(), ("x", "y", "n"))
    with pytest.raises(AssertionError, match="Guard failed"):
        run([torch.ones(2, 2), torch.ones(2, 2), 4])
    with pytest.raises(AssertionError, match="Guard failed"):
        run([torch.ones(5, 2), torch.ones(6, 2), 4])


class Far(torch.nn.Module):
    """Where the first input is not much longer than the second one, another way is taken."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        total = y.sum(dim=1, keepdim=True)
        return x.cumsum(1) + total if x.shape[1] > y.shape[1] + 3 else x * 2 + total


def test_a_graph_of_a_region_is_widened_to_a_batch_of_one() -> None:
    """Trials of sizes that another graph serves say nothing of this one, and keep no bound of it."""
    observer, model = InputObserver(), Far()
    with observer(model):
        for batch, first, second in ((2, 12, 3), (3, 13, 4), (5, 19, 7)):
            model(torch.randn(batch, first), torch.randn(batch, second))
    program = observer.export(probe=False)
    x, y = torch.randn(1, 10), torch.randn(1, 1)
    torch.testing.assert_close(program(x, y), Far()(x, y))
    for graph in program.graphs:
        assert graph.ranges["batch"] == (1, None)
        assert "x.shape[0] >= 2" not in conditions_of(graph)
