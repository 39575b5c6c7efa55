"""Numbers, bools and shapes that a model returns are those of the call, on every target."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import onlooker
from onlooker import InputObserver, Program, RejectedCallError

Function = Callable[[torch.Tensor], Any]
WATCHED = ((2, 5), (3, 9), (4, 7))
OTHERS = ((2, 5), (5, 100), (3, 1), (1, 1), (7, 7), (2, 8))


def returning(function: Function) -> tuple[torch.nn.Module, Program]:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return x * 2, function(x)

    model, observer = Model(), InputObserver()
    with torch.no_grad(), observer(model):
        for size in WATCHED:
            model(torch.rand(size))
    return model, observer.export()


def same(one: Any, other: Any) -> bool:
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and bool(one == other)


BOOLS: dict[str, Function] = {
    "above": lambda x: x.shape[1] > 64,
    "odd": lambda x: x.shape[1] % 2 == 1,
    "or": lambda x: (x.shape[1] > 64) | (x.shape[0] > 3),
    "and": lambda x: (x.shape[1] > 6) & (x.shape[0] > 3),
    "not": lambda x: torch.sym_not(x.shape[1] > 8),
    "equal": lambda x: x.shape[0] == x.shape[1],
    "one": lambda x: x.shape[1] == 1,
    "many": lambda x: x.shape[0] > 1,
    "of a value": lambda x: (x > 0.9).any().item(),
    "of a value and a size": lambda x: ((x > 0.5).sum().item() > 4) & (x.shape[0] > 2),
}
SHAPES: dict[str, Function] = {
    "shape": lambda x: x.shape,
    "part of a shape": lambda x: x.shape[1:],
    "slice": lambda x: slice(1, x.shape[1]),
    "sizes": lambda x: [x.size(0), {"n": x.numel()}],
    "count": lambda x: (x > 0.5).sum().item(),
}


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", [*BOOLS, *SHAPES])
def test_what_is_returned_is_that_of_the_call(name: str) -> None:
    model, program = returning({**BOOLS, **SHAPES}[name])
    assert program.verify().verified
    for size in OTHERS:
        x = torch.rand(size)
        assert same(program(x)[1], model(x)[1])


@pytest.mark.parametrize("target", ["onnx", "openvino"])
def test_bools_and_shapes_come_out_of_other_runtimes(target: str) -> None:
    functions = [*BOOLS.values(), *SHAPES.values()]
    model, program = returning(lambda x: [function(x) for function in functions])
    converted = program.to(target)
    assert converted.verify().verified
    for size in OTHERS:
        x = torch.rand(size)
        assert same(converted(x)[1], model(x)[1])


def test_bools_and_shapes_are_saved(tmp_path: Any) -> None:
    model, program = returning(lambda x: (x.shape[1] > 64, x.shape, slice(0, x.shape[1])))
    program.save(tmp_path / "program")
    loaded = onlooker.load(tmp_path / "program")
    for size in OTHERS:
        x = torch.rand(size)
        assert same(loaded(x)[1], model(x)[1])


def test_a_size_in_an_object_that_is_not_opened_is_a_constant_of_the_contract() -> None:
    _, program = returning(lambda x: SimpleNamespace(sizes={"n": x.shape[1]}))
    program.verify()
    with pytest.raises(RejectedCallError, match=r"x\.shape\[1\] == "):
        program(torch.rand(2, 40))
    assert program(torch.rand(2, 5))[1].sizes == {"n": 5}


def test_a_script_gives_shapes_and_bools_too() -> None:
    _, program = returning(lambda x: (x.shape[1] > 64, x.shape))
    assert "{0: result[1][1][0], 1: result[1][1][1]}" in program.code()


def test_a_bool_of_two_tensors_that_is_another_one_is_refused_with_its_line() -> None:
    _, program = returning(lambda x: torch.equal(x, x * 2))
    assert program(torch.rand(2, 5) + 1)[1] is False
    with pytest.raises(RejectedCallError, match="test_returned_numbers"):
        program(torch.zeros(2, 5))


NUMBERS_OF_A_SIZE: dict[str, Callable[[int], Any]] = {
    "ceil": lambda n: math.ceil(n / 3),
    "floor": lambda n: math.floor(n * 0.7),
    "round": lambda n: round(n * 0.5),
    "root": lambda n: n**0.5,
    "logarithm": lambda n: math.log(n + 1),
    "either": lambda n: n ^ 5,
}


@pytest.mark.parametrize("name", NUMBERS_OF_A_SIZE)
@pytest.mark.one_in(3)
def test_a_program_that_gives_a_number_of_a_size_is_saved(name: str, tmp_path: Path) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return x * 2, NUMBERS_OF_A_SIZE[name](x.shape[1])

    model, observer = Model(), InputObserver()
    with observer(model):
        for rows, length in ((2, 5), (3, 9), (2, 12)):
            model(torch.randn(rows, length))
    program = observer.export()
    assert program.verify().verified, program.report
    program.save(tmp_path / "p")
    loaded = onlooker.load(tmp_path / "p")
    for length in (1, 4, 25, 100):
        found, expected = loaded(torch.zeros(1, length))[1], NUMBERS_OF_A_SIZE[name](length)
        assert (type(found), found) == (type(expected), expected)
