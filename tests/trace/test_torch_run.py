"""The graph of a program is called without the pytrees of torch's module: same results, same refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from onlooker import InputObserver, Program, RejectedCallError
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


def test_the_guards_of_torch_are_not_checked() -> None:
    """The contract of a graph is checked before: the batch of the trace was 3 and more, and the graph takes 2."""
    run = runner_of(exported(), ("x", "y", "n"))
    x, y = torch.randn(2, 2), torch.randn(2, 2)
    torch.testing.assert_close(run([x, y, 4]), Pair()(x, y, 4))


class Far(torch.nn.Module):
    """Where the first input is not much longer than the second one, another way is taken."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        total = y.sum(dim=1, keepdim=True)
        return x.cumsum(1) + total if x.shape[1] > y.shape[1] + 3 else x * 2 + total


@pytest.fixture(scope="module")
def far() -> Program:
    observer, model = InputObserver(), Far()
    with observer(model):
        for batch, first, second in ((2, 12, 3), (3, 13, 4), (5, 19, 7)):
            model(torch.randn(batch, first), torch.randn(batch, second))
    return observer.export(probe=False, ranges={"x_dim_1": (1, 24)})


@pytest.mark.parametrize("sizes", [(1, 10, 1), (1, 10, 5), (1, 1, 1), (1, 4, 1), (4, 11, 7), (4, 10, 7)], ids=str)
def test_both_sides_of_a_condition_are_served_with_a_batch_of_one_as_well(far: Program, sizes: Any) -> None:
    """Trials of sizes that another graph serves say nothing of this one, and keep no bound of it."""
    batch, first, second = sizes
    x, y = torch.randn(batch, first), torch.randn(batch, second)
    torch.testing.assert_close(far(x, y), Far()(x, y))


def test_a_batch_of_one_is_in_the_contract_of_every_graph(far: Program) -> None:
    assert len(far.graphs) > 1
    for graph in far.graphs:
        assert graph.plan.symbol("batch").low == 1
        assert not any("batch" in constraint.formula for r in graph.contract.regions for constraint in r.constraints)


@pytest.mark.parametrize("sizes", [(1, 10, 1), (1, 1, 1), (4, 11, 7), (4, 10, 7), (2, 12, 3)], ids=str)
def test_the_guards_of_a_program_are_its_contract(far: Program, sizes: Any) -> None:
    """For whoever takes the program out of onlooker: torch refuses what the contract excludes, and nothing else."""
    batch, first, second = sizes
    inputs = {"x": torch.randn(batch, first), "y": torch.randn(batch, second)}
    for graph in far.graphs:
        module = graph.artifact.module()
        if graph.contract.holds({"batch": batch, "x_dim_1": first, "y_dim_1": second}):
            torch.testing.assert_close(module(**inputs)[0], Far()(**inputs))
        else:
            with pytest.raises(AssertionError, match="Guard failed"):
                module(**inputs)


def test_sizes_that_the_plan_excludes_are_refused(far: Program) -> None:
    with pytest.raises(RejectedCallError, match=r"y\.shape\[0\] has to be batch") as caught:
        far(torch.ones(2, 12), torch.ones(3, 3))
    assert caught.value.slug == "call-refused"
