"""Conversions broken on purpose, for every target and precision: the verdict names each, and accuses no right one.

A conversion is broken by giving it other weights than the model has: what it makes of weights times two is what one
with scales twice as large makes of the weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from onlooker import InputObserver, Program
from onlooker.core.errors import MissingPackageError
from onlooker.core.precision import is_calibrated
from onlooker.core.verdict import Focus, Tally
from onlooker.targets.targets import TARGETS, target_of
from onlooker.trace.torch_run import runner_of

State = dict[str, torch.Tensor]
FIRST, SECOND = "watched.first.weight", "watched.second.weight"
BLOCK = 32

pytestmark = pytest.mark.filterwarnings("ignore")


class Mixed(torch.nn.Module):
    """A convolution, two square layers and a head: x is (batch, 8, length), the result (batch, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv1d(8, 64, 3, padding=1)
        self.first = torch.nn.Linear(64, 64)
        self.second = torch.nn.Linear(64, 64)
        self.head = torch.nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = torch.relu(self.conv(x)).mean(2)
        return self.head(torch.relu(self.second(torch.relu(self.first(rows)))))


@pytest.fixture(scope="module")
def mixed() -> Program:
    torch.manual_seed(0)
    model, observer = Mixed().eval(), InputObserver()
    with observer(model, keep=64), torch.no_grad():
        for batch, length in ((2, 5), (3, 9), (4, 6), (6, 7), (5, 12), (9, 8)):
            model(torch.randn(batch, 8, length))
    return observer.export()


def scale_twice(state: State) -> State:
    return {FIRST: 2 * state[FIRST]}


def transposed_block(state: State) -> State:
    """The first block of each of 32 outputs, as if its inputs were outputs."""
    changed = state[FIRST].detach().clone()
    changed[:BLOCK, :BLOCK] = state[FIRST][:BLOCK, :BLOCK].t()
    return {FIRST: changed}


def mixed_axis(state: State) -> State:
    return {FIRST: state[FIRST].t().contiguous()}


def zero_point_off(state: State) -> State:
    """Each number of 4 bits one too high."""
    blocks = state[SECOND].reshape(64, -1, BLOCK)
    step = blocks.abs().amax(2, keepdim=True) / 7
    return {SECOND: (blocks + step).reshape(64, 64)}


def swapped_layers(state: State) -> State:
    return {FIRST: state[SECOND], SECOND: state[FIRST]}


def broken(program: Program, change: Callable[[State], State]) -> Program:
    """The program of torch with other weights than its model."""
    (graph,) = program.graphs
    state = graph.artifact.state_dict
    changed = {name: torch.nn.Parameter(value) for name, value in change(state).items()}
    made = graph.artifact._update(
        graph.artifact.graph_module, graph.artifact.graph_signature, state_dict={**state, **changed}
    )
    run = runner_of(made, tuple(graph.names.values()))
    return Program(program._program.with_graphs([replace(graph, artifact=made, run=run)]))


def converted(program: Program, target: str, precision: str, **options: Any) -> Program:
    try:
        target_of(target).require()
    except MissingPackageError as error:
        pytest.skip(error.message)
    bounds = {"ranges": {"batch": (1, 32), "x_dim_2": (1, 32)}} if target_of(target).needs_bounds else {}
    return program.to(target, precision=precision, **bounds, **options)


def check_named(tally: Tally) -> None:
    failed = [check for check in tally.checks if not check.passed]
    assert {check.focus for check in failed} == {Focus.DISTANCE}
    assert "which does not explain it" in tally.verdict


def pair(target: str, precision: str) -> Any:
    """AOTInductor compiles each program for seconds."""
    marks = [pytest.mark.slow] if target == "aoti" else []
    return pytest.param(target, precision, marks=marks)


PAIRS = [pair(target.name, precision) for target in TARGETS for precision in target.precisions]
CALIBRATED = [pair(target.name, one) for target in TARGETS for one in target.precisions if is_calibrated(one)]
DAMAGES = [
    scale_twice,
    *(pytest.param(one, marks=pytest.mark.slow) for one in (transposed_block, mixed_axis, swapped_layers)),
]


@pytest.mark.parametrize(("target", "precision"), PAIRS)
def test_a_right_conversion_is_verified(mixed: Program, target: str, precision: str) -> None:
    assert converted(mixed, target, precision).verify().verdict == f"verified as {precision}"


@pytest.mark.parametrize("change", DAMAGES, ids=lambda change: getattr(change, "__name__", None))
@pytest.mark.parametrize(("target", "precision"), PAIRS)
def test_a_broken_conversion_is_named(
    mixed: Program, target: str, precision: str, change: Callable[[State], State]
) -> None:
    check_named(converted(broken(mixed, change), target, precision).verify())


@pytest.mark.parametrize("target", [target.name for target in TARGETS])
def test_a_zero_point_that_is_off_by_one_is_named(mixed: Program, target: str) -> None:
    check_named(converted(broken(mixed, zero_point_off), target, "int4").verify())


@pytest.mark.parametrize(("target", "precision"), CALIBRATED)
def test_a_range_that_no_call_had_is_named(mixed: Program, target: str, precision: str) -> None:
    given = [{"x": sample.arguments()["x"] * 16} for sample in mixed._program.samples]
    check_named(converted(mixed, target, precision, calibration=given).verify())
