"""What a caller may give as a budget."""

from __future__ import annotations

from typing import Any

import pytest

from onlooker.core.errors import UsageError
from onlooker.lab.budget import BUDGET, Budget, budget_of


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (0, Budget(0, None)),
        (64, Budget(64, None)),
        ((64,), Budget(64, None)),
        ((64, None), Budget(64, None)),
        ((64, 60.0), Budget(64, 60.0)),
        ((64, 60), Budget(64, 60)),
        (BUDGET, Budget()),
    ],
)
def test_a_budget_is_runs_or_runs_and_seconds(given: Any, expected: Budget) -> None:
    assert budget_of(given) == expected


@pytest.mark.parametrize(
    "wrong", [-1, "64", None, True, 1.5, (), (1, 2, 3), (1, -2.0), (1, "2"), (None, 2), [64, 60.0]]
)
def test_anything_else_is_an_error(wrong: Any) -> None:
    with pytest.raises(UsageError, match="cannot be obeyed") as caught:
        budget_of(wrong)
    assert caught.value.slug == "bad-pin"


def test_the_default_has_no_limit_of_time() -> None:
    assert BUDGET[1] is None
