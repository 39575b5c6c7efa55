"""The digest of a call: equal for equal values, and another one for anything that a model could tell apart."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from onlooker import make_dynamic_cache
from onlooker.lab.memo import Memo, key_of


def cache(value: float) -> Any:
    return make_dynamic_cache([(torch.full((1, 2, 3, 4), value), torch.zeros(1, 2, 3, 4))])


SAME: list[tuple[Any, Any]] = [
    ({"x": torch.ones(2, 3)}, {"x": torch.ones(2, 3)}),
    ({"x": torch.ones(2, 3), "n": 3}, {"x": torch.ones(2, 3).clone(), "n": 3}),
    ({"x": [torch.zeros(0, 2), None]}, {"x": [torch.zeros(0, 2), None]}),
    ({"c": cache(1.0)}, {"c": cache(1.0)}),
    ({"x": torch.tensor(True)}, {"x": torch.tensor(True)}),
    ({"x": torch.ones(2, dtype=torch.bfloat16)}, {"x": torch.ones(2, dtype=torch.bfloat16)}),
]
OTHER: list[tuple[Any, Any]] = [
    ({"x": torch.ones(2, 3)}, {"x": torch.ones(3, 2)}),
    ({"x": torch.ones(2, 3)}, {"x": torch.zeros(2, 3)}),
    ({"x": torch.ones(2)}, {"x": torch.ones(2, dtype=torch.float64)}),
    ({"x": torch.ones(2)}, {"y": torch.ones(2)}),
    ({"n": 1}, {"n": True}),
    ({"n": 1}, {"n": 1.0}),
    ({"x": [torch.ones(2)]}, {"x": (torch.ones(2),)}),
    ({"x": torch.ones(2), "y": None}, {"x": torch.ones(2)}),
    ({"c": cache(1.0)}, {"c": cache(2.0)}),
    ({"x": torch.ones(2, 2, 2, 2)}, {"x": torch.ones(2, 2, 2, 2).to(memory_format=torch.channels_last)}),
]


@pytest.mark.parametrize(("one", "two"), SAME)
def test_equal_calls_have_one_key(one: Any, two: Any) -> None:
    assert key_of(one) == key_of(two) is not None


@pytest.mark.parametrize(("one", "two"), OTHER)
def test_other_calls_have_other_keys(one: Any, two: Any) -> None:
    assert key_of(one) != key_of(two)


@pytest.mark.parametrize("value", [torch.ones(2, 2).to_sparse(), object()], ids=["sparse", "an object"])
def test_what_has_no_digest_has_no_key(value: Any) -> None:
    assert key_of({"x": value}) is None


def test_nothing_is_kept_without_a_key() -> None:
    memo = Memo()
    memo.keep(None, ValueError("refused"))
    assert not memo.has(None)


class Strange(Exception):
    """An exception that cannot be copied."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(one + two)


def test_an_error_is_kept_without_the_frames_that_it_came_from() -> None:
    memo = Memo()
    with pytest.raises(ValueError, match="too long") as raised:
        int("too long")
    memo.keep("key", raised.value)
    assert raised.value.__traceback__ is not None
    with pytest.raises(ValueError, match="too long") as caught:
        memo.result("key")
    assert len(caught.traceback) == 2  # this test and the memo


def test_an_error_that_cannot_be_copied_is_not_kept() -> None:
    memo = Memo()
    memo.keep("key", Strange(1, 2))
    assert not memo.has("key")


def test_what_is_forgotten_is_run_again() -> None:
    memo = Memo()
    memo.keep("key", ValueError("too long"))
    memo.forget()
    assert not memo.has("key")
