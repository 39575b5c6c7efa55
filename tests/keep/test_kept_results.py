"""Results that are no tensors, and programs that are copied or pickled."""

from __future__ import annotations

import collections
import copy
import enum
import pickle
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from onlooker import InputObserver, Program, UnsupportedError, load


class Described(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[Any, ...]:
        return x * 2, x.dtype, x.device


class Colour(enum.Enum):
    RED = 1


class Collected(torch.nn.Module):
    """Gives what torch and Python have as a result, beside tensors."""

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        return {
            "topk": x.topk(2),
            "max": x.max(1),
            "deque": collections.deque([x], 5),
            "defaultdict": collections.defaultdict(list, {"x": x}),
            "namespace": types.SimpleNamespace(x=x),
            "constants": [
                {1, 2},
                frozenset({"a"}),
                2j,
                range(1, 9, 2),
                b"text",
                Colour.RED,
                np.int64(3),
                np.float32(2.5),
            ],
        }


def test_collections_and_constants_are_themselves_in_a_loaded_program(tmp_path: Path) -> None:
    observer = InputObserver()
    with observer(model := Collected()):
        model(torch.randn(2, 4))
        model(torch.randn(3, 5))
    observer.export().save(tmp_path / "program")
    x = torch.arange(12.0).view(2, 6)
    found, expected = load(tmp_path / "program")(x), model(x)
    values, places = found["topk"]
    torch.testing.assert_close((values, places), tuple(expected["topk"]))
    assert {name: type(value) for name, value in found.items()} == {name: type(v) for name, v in expected.items()}
    torch.testing.assert_close(found["max"].indices, expected["max"].indices)
    assert found["deque"].maxlen == 5
    assert found["defaultdict"]["y"] == []
    torch.testing.assert_close(found["namespace"].x, x)
    assert found["constants"] == expected["constants"]
    assert [*map(type, found["constants"])] == [*map(type, expected["constants"])]


@pytest.fixture(scope="module")
def program() -> Program:
    observer = InputObserver()
    with observer(model := Described()):
        model(torch.randn(2, 4))
        model(torch.randn(3, 4))
    return observer.export()


def test_dtypes_and_devices_are_themselves_in_a_loaded_program(program: Program, tmp_path: Path) -> None:
    program.save(str(tmp_path / "program"))
    once = load(str(tmp_path / "program"))
    once.save(str(tmp_path / "again"))
    for loaded in (once, load(str(tmp_path / "again"))):
        assert loaded(torch.ones(2, 4))[1:] == (torch.float32, torch.device("cpu"))


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")  # torch warns of the copy of its own class
def test_a_copy_runs_and_a_pickle_is_one_clear_error(program: Program) -> None:
    for made in (copy.copy(program), copy.deepcopy(program)):
        torch.testing.assert_close(made(torch.ones(5, 4))[0], torch.full((5, 4), 2.0))
    with pytest.raises(UnsupportedError, match=r"program\.save") as error:
        pickle.dumps(program)
    assert error.value.slug == "not-saved"


class Noisy(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.empty_like(x).uniform_()


@pytest.mark.filterwarnings("ignore:.*draws random numbers")
def test_numbers_that_are_drawn_between_bounds_are_drawn_by_a_loaded_program(tmp_path: Path) -> None:
    """The file of torch cannot be read without the bound that is called as a keyword of Python is, ``from``."""
    observer = InputObserver()
    with observer(model := Noisy()):
        model(torch.randn(2, 4))
        model(torch.randn(3, 5))
    observer.export().save(tmp_path / "program")
    drawn = load(tmp_path / "program")(torch.zeros(9, 9))
    assert ((drawn > 0) & (drawn < 1)).all()


class Tokens(torch.nn.Module):
    def forward(self, ids: torch.Tensor, pad: int = 0, eos: int = 1) -> tuple[torch.Tensor, ...]:
        is_text, before = ids != pad, (ids == eos).long().cumsum(1) <= 1
        return (is_text & before).sum(1), ids.masked_fill(~is_text, -100)


def test_a_number_below_the_size_of_an_axis_without_a_row_ends_no_verification() -> None:
    model, observer = Tokens(), InputObserver()
    ids = torch.arange(21).remainder(5)
    with observer(model):
        model(ids[:12].view(2, 6))
        model(ids[:15].view(3, 5), 2)
        model(ids[:15].flip(0).view(3, 5), 3, 4)
    assert observer.export().verify().verified
