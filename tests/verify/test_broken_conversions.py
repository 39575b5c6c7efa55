"""Conversions broken on purpose, for every target and precision: the verdict names each, and accuses no right one.

A conversion is broken by giving it other weights than the model has: what it makes of weights times two is what one
with scales twice as large makes of the weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from mixed_layers import State, program_of_mixed, with_weights
from onlooker import Program
from onlooker.core.errors import MissingPackageError
from onlooker.core.precision import is_calibrated
from onlooker.core.verdict import Focus, Tally
from onlooker.targets.targets import TARGETS, target_of

FIRST, SECOND = "watched.first.weight", "watched.second.weight"
BLOCK = 32

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def mixed() -> Program:
    return program_of_mixed()


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
    state = program.graphs[0].artifact.state_dict
    changed = {name: torch.nn.Parameter(value) for name, value in change(state).items()}
    return with_weights(program, changed)


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
@pytest.mark.one_in(4)
def test_a_right_conversion_is_verified(mixed: Program, target: str, precision: str) -> None:
    assert converted(mixed, target, precision).verify().verdict == f"verified as {precision}"


@pytest.mark.parametrize("change", DAMAGES, ids=lambda change: getattr(change, "__name__", None))
@pytest.mark.parametrize(("target", "precision"), PAIRS)
@pytest.mark.one_in(16)
def test_a_broken_conversion_is_named(
    mixed: Program, target: str, precision: str, change: Callable[[State], State]
) -> None:
    check_named(converted(broken(mixed, change), target, precision).verify())


@pytest.mark.parametrize("target", [target.name for target in TARGETS])
@pytest.mark.one_in(4)
def test_a_zero_point_that_is_off_by_one_is_named(mixed: Program, target: str) -> None:
    check_named(converted(broken(mixed, zero_point_off), target, "int4").verify())


@pytest.mark.parametrize(("target", "precision"), CALIBRATED)
def test_a_range_that_no_call_had_is_named(mixed: Program, target: str, precision: str) -> None:
    given = [{"x": sample.arguments()["x"] * 16} for sample in mixed._program.samples]
    check_named(converted(mixed, target, precision, calibration=given).verify())
