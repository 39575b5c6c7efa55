"""Ints that take few values over the sizes are bound for all sizes that give the same value."""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import math
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

from onlooker import InputObserver, Program, RejectedCallError
from onlooker.repairs.numbers.size_functions import _alike

LEVELS = [0] * 8 + [1] * 8 + [2] * 48
FACTORS = {5: 1, 9: 2, 8: 3}
MADE: dict[int, torch.Tensor] = {}
#: sizes of calls, and of calls that were never seen
SEEN, OTHERS = ((2, 5), (3, 9), (4, 8)), (4, 6, 7, 11, 13, 15, 17)


@pytest.fixture(autouse=True)
def _remembering_nothing() -> None:
    """Another test may have written to what a function remembers."""
    for function in (steps_of, table_of, noise, lower):
        function.cache_clear()


@functools.lru_cache
def steps_of(length: int) -> torch.Tensor:
    return torch.arange(float(length))[:, None]


@functools.lru_cache
def noise(length: int) -> torch.Tensor:
    return torch.rand(length, 1)


@functools.cache
def lower(length: int, device: torch.device) -> torch.Tensor:
    mask = torch.zeros(length, length, device=device)
    mask[torch.ones(length, length, dtype=torch.bool).tril()] = 1
    return mask


@functools.lru_cache
def table_of(length: int) -> dict[str, list[object]]:
    return {"steps": [torch.arange(float(length))[:, None], 2 * length]}


def lengthened(x: torch.Tensor) -> torch.Tensor:
    steps, length = table_of(x.shape[1])["steps"]
    return x * steps * length


def changed_later(x: torch.Tensor) -> torch.Tensor:
    table = table_of(x.shape[1])
    table["steps"][1] += 1
    return x * table["steps"][1]


def remembered(x: torch.Tensor) -> torch.Tensor:
    length = x.shape[1]
    if length not in MADE:
        MADE[length] = torch.arange(float(length))[:, None]
    return x * MADE[length]


def padded(x: torch.Tensor) -> torch.Tensor:
    missing = 2 ** math.ceil(math.log2(x.shape[1])) - x.shape[1]
    return torch.nn.functional.pad(x, (0, 0, 0, missing))


def doubled(x: torch.Tensor) -> torch.Tensor:
    for number in range(int(math.log2(x.size(1)))):
        x = x + number * x
    return x


class Table(torch.nn.Module):
    """Looks a factor up in a table of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.levels = [1] * 7 + [2] * 57

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.levels[x.shape[1]]


class Applied(torch.nn.Module):
    """Applies a function."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


FOLLOWED: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "log2": lambda x: x * int(math.log2(x.shape[1])),
    "bit_length": lambda x: x * (x.shape[1] - 1).bit_length(),
    "isqrt": lambda x: x * math.isqrt(x.shape[1]),
    "padding to a power": padded,
    "a loop": doubled,
    "a table": lambda x: x * LEVELS[x.shape[1]],
    "a dict": lambda x: x * FACTORS.get(x.shape[1], 7),
    "a set": lambda x: x * 2 if x.shape[1] in {5, 9} else x,
    "divmod": lambda x: x * divmod(x.shape[1], 4)[1] + divmod(100, x.shape[1])[0],
    "the last bit": lambda x: x * 2 if x.shape[1] & 1 else x,
    "some bits": lambda x: x * (x.shape[1] & 6),
    "a power of two": lambda x: x * 2 if x.shape[1] & (x.shape[1] - 1) == 0 else x,
    "a range with it": lambda x: x * 2 if 6 in range(0, x.shape[1], 3) else x,
    "a shift": lambda x: x[:, : x.shape[1] >> 1] * (1 + (x.shape[1] << 2)),
}

#: functions that are one graph for all sizes
FREE: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a float of a quotient": lambda x: x * float(x.shape[1] // 2),
    "an int of a shift": lambda x: x * int(x.shape[1] >> 1),
    "rounded": lambda x: x * float(round(x.shape[1] * 0.3) + math.ceil(x.shape[1] / 4)),
    "bits of two runs": lambda x: x * (x.shape[1] & 13),
    "or": lambda x: x * (6 | x.shape[1]),
    "exclusive or": lambda x: x * (x.shape[1] ^ 5),
    "the complement": lambda x: x * ~x.shape[1],
    "an int for isinstance": lambda x: x * 2 if isinstance(x.shape[1], int) else x,
    "a bool as a number": lambda x: x * float(x.shape[1] != 40) * (1.0, 2.0)[x.shape[1] > 0],
    "a deep copy": lambda x: x * copy.deepcopy([x.shape[1]])[0],
    "a root": lambda x: x / math.sqrt(x.shape[1]),
    "logarithms": lambda x: x * (math.log(x.shape[1]) / math.log(512) + math.log(x.shape[1] / 2, 10)),
    "an exponential": lambda x: x * math.exp(-x.shape[1] / 50) * math.sin(x.shape[1]),
    "a root by NumPy": lambda x: x / np.sqrt(x.shape[1]),
    "a root of a quotient by NumPy": lambda x: x * np.sqrt(x[..., :1].numel() / x.numel()) * np.arctan(x.shape[1]),
    "an exponential of a logarithm": lambda x: x * np.exp(-np.log(x.shape[1])) + math.exp(-math.log(x.shape[1])),
    "a float of a root": lambda x: x / float(math.sqrt(x.shape[1])) * float(np.log2(x.shape[1])),
    "the last of a range": lambda x: x * range(0, x.shape[1], 3)[-1],
    "a logarithm of 1 at least": lambda x: x * max(1.0, math.log(x.shape[1]) / math.log(9)),
    "the least of three": lambda x: x * min(2, math.log(x.shape[1]), math.log2(x.shape[1]) / 2),
}


def program_of(model: torch.nn.Module) -> Program:
    observer = InputObserver()
    with torch.no_grad(), observer(model):
        for batch, length in SEEN:
            model(torch.randn(batch, length, 4))
    return observer.export()


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", FOLLOWED)
def test_sizes_with_the_same_value_are_served_by_one_graph(name: str) -> None:
    model = Applied(FOLLOWED[name])
    program = program_of(model)
    served = 0
    for length in (*(length for _, length in SEEN), *OTHERS):
        x = torch.randn(2, length, 4)
        try:
            got = program(x)
        except RejectedCallError:
            assert length in OTHERS
        else:
            served += length in OTHERS
            torch.testing.assert_close(got, model(x))
    assert served >= 2


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", FREE)
def test_numbers_made_from_sizes_are_one_graph_for_all_sizes(name: str) -> None:
    model = Applied(FREE[name])
    program = program_of(model)
    assert program.verify().verified
    assert len(program.graphs) == 1
    for length in OTHERS:
        x = torch.randn(2, length, 4)
        torch.testing.assert_close(program(x), model(x))


@pytest.mark.parametrize(
    "function",
    [lambda x: x * LEVELS[min(x.shape[1], 9)], lambda x: x * math.factorial(min(x.shape[1], 6))],
    ids=["a table", "a factorial"],
)
def test_a_bounded_size_as_a_number_is_a_condition(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """``min(6, n) == 6`` is no number because of itself."""
    model = Applied(function)
    program = program_of(model)
    assert program.verify().verified
    for length in (1, 2, 4, 5, 8, 9, 20):
        x = torch.randn(2, length, 4)
        with contextlib.suppress(RejectedCallError):
            torch.testing.assert_close(program(x), model(x))


@pytest.mark.parametrize(
    ("function", "least"),
    [
        (lambda x: x * (2.0 if math.log(x.shape[1]) > 2 else 1.0), 7),
        (lambda x: x * max(1.0, math.log(x.shape[1])), 0),
        (lambda x: x * int(math.log2(x.shape[1])), 2),
        (lambda x: x[:, : math.ceil(math.sqrt(x.shape[1]))], 2),
    ],
    ids=["a branch", "a maximum", "a whole logarithm", "a length"],
)
@pytest.mark.one_in(2)
def test_a_number_of_math_that_decides_is_no_value(
    function: Callable[[torch.Tensor], torch.Tensor], least: int
) -> None:
    model = Applied(function)
    program = program_of(model)
    assert program.verify().verified
    served = 0
    for length in OTHERS:
        x = torch.randn(2, length, 4)
        with contextlib.suppress(RejectedCallError):
            torch.testing.assert_close(program(x), model(x))
            served += 1
    assert served >= least


def test_a_table_of_a_module_is_read() -> None:
    model = Table()
    program = program_of(model)
    for length in (1, 4, 6, 7, 30):
        x = torch.randn(2, length, 4)
        torch.testing.assert_close(program(x), model(x))
    assert any("x_dim_1 <= 6" in c.formula for r in program.graphs[0].contract.regions for c in r.constraints)


def test_what_a_dict_of_the_file_remembers_is_served_for_all_sizes() -> None:
    model = Applied(remembered)
    program = program_of(model)
    for batch, length in (*SEEN, (2, 6)):
        x = torch.randn(batch, length, 4)
        torch.testing.assert_close(program(x), model(x))
    assert {type(key).__name__ for key in MADE} <= {"int"}


@pytest.mark.parametrize(
    "function",
    [lambda x: x * steps_of(x.shape[1]), lambda x: lower(x.shape[1], x.device) @ x],
    ids=["steps", "a mask"],
)
@pytest.mark.slow
def test_what_a_function_remembers_is_computed_for_other_sizes(function: Callable[..., torch.Tensor]) -> None:
    model = Applied(function)
    program = program_of(model)
    assert program.verify().verified
    for length in (*OTHERS, 40):
        x = torch.randn(2, length, 4)
        torch.testing.assert_close(program(x), model(x))
    assert type(model(torch.randn(2, 30, 4))) is torch.Tensor


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * noise(x.shape[1]),
        lambda x: x * steps_of(x.shape[1]).add_(1),
        changed_later,
    ],
    ids=["random numbers", "a write", "a list"],
)
@pytest.mark.filterwarnings("ignore::onlooker.core.errors.OnlookerWarning")
def test_what_a_function_remembers_and_others_change_is_not_computed(function: Callable[..., torch.Tensor]) -> None:
    model = Applied(function).eval()
    program = program_of(model)
    for length in (4, 6, 40):
        with pytest.raises(RejectedCallError):
            program(torch.randn(2, length, 4))
    if program.verify().verified:
        for batch, length in SEEN:
            x = torch.randn(batch, length, 4)
            torch.testing.assert_close(program(x), model(x))


def test_the_sizes_around_an_example_are_those_with_its_value() -> None:
    assert _alike(int.bit_length, 40) == (32, 63)
    assert _alike(LEVELS.__getitem__, 20) == (16, 63)
    assert _alike(lambda n: 12 // n, 1) == (1, 1)
    assert _alike(lambda n: 7, 3) == (0, 3 + (1 << 14))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * torch.from_numpy(np.arange(x.shape[1]))[:, None],
        lambda x: x * torch.tensor(np.arange(1, x.shape[1] + 1))[:, None],
        lambda x: x[:, : int(np.round(x.shape[1] / 3))],
    ],
    ids=["an array", "an array from 1", "rounded"],
)
def test_an_array_of_numpy_has_a_graph_for_each_watched_size(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    model = Applied(function)
    program = program_of(model)
    assert program.verify().verified
    for batch, length in SEEN:
        x = torch.randn(batch, length, 4)
        torch.testing.assert_close(program(x), model(x))


def test_what_is_remembered_in_lists_is_computed() -> None:
    program = program_of(Applied(lengthened))
    assert program.verify().verified
    for length in OTHERS:
        x = torch.randn(2, length, 4)
        torch.testing.assert_close(program(x), lengthened(x))


def test_what_a_class_of_another_file_remembers_is_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, code in {
        "frames_of_sizes": """
            import functools, torch
            @functools.cache
            def steps_of(length):
                return torch.arange(float(length))[:, None]
            class Frame:
                @classmethod
                def of(cls, x):
                    return steps_of(x.shape[1])
        """,
        "model_with_frames": """
            import torch
            from frames_of_sizes import Frame
            class Model(torch.nn.Module):
                def forward(self, x):
                    return x * Frame.of(x)
        """,
    }.items():
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(code))
    monkeypatch.syspath_prepend(str(tmp_path))
    model = importlib.import_module("model_with_frames").Model()
    program = program_of(model)
    assert program.verify().verified
    for length in OTHERS:
        x = torch.randn(2, length, 4)
        torch.testing.assert_close(program(x), model(x))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.topk(np.minimum(8, x.shape[1]), 1)[0],
        lambda x: x[:, : np.ceil(x.shape[1] / 3).astype("int").item()],
        lambda x: torch.nn.functional.pad(x, (0, 0, 0, np.maximum(x.shape[1], 7) - x.shape[1])),
        lambda x: x * np.minimum.reduce([x.shape[2], 7]),
    ],
    ids=["the smaller one", "as an int", "the greater one", "of numbers"],
)
@pytest.mark.one_in(2)
def test_the_smaller_size_by_numpy_is_no_branch(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    program = program_of(Applied(function))
    assert program.verify().verified
    assert len(program.graphs) == 1
    for length in (*OTHERS, 40):
        x = torch.randn(2, length, 4)
        torch.testing.assert_close(program(x), function(x))


class KeepsTables(torch.nn.Module):
    """Keeps a table for each size in a dict of its own, by two sizes: the positions of SAM 2."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[tuple[int, int], torch.Tensor] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        key = (x.shape[1], x.shape[2])
        if key in self.tables:
            return x * self.tables[key]
        table = torch.arange(float(key[0]))[:, None] * torch.arange(key[1])
        self.tables[key] = table
        return x * table


@pytest.mark.slow
def test_a_model_that_keeps_a_table_for_two_sizes_is_served_for_seen_sizes() -> None:
    model = KeepsTables().eval()
    program = program_of(model)
    for batch, length in SEEN:
        x = torch.randn(batch, length, 4)
        torch.testing.assert_close(program(x), model(x))
    assert all(type(size) is int for key in model.tables for size in key)
