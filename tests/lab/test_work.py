"""The work of one run follows from the model and the sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from onlooker.core.path import Attr, Index, Name, Path
from onlooker.lab.work import MOST_WORK, work_of

MODEL = torch.nn.Linear(10, 10, bias=False)
CACHE = Path((Name("past"), Attr("layers"), Index(0), Attr("keys")))


@pytest.mark.parametrize(
    ("values", "rows"),
    [
        ({Path((Name("ids"),)): torch.ones(2, 7, dtype=torch.int64)}, 14),
        ({Path((Name("x"),)): torch.ones(2, 7, 10)}, 14),
        ({Path((Name("x"),)): torch.ones(2, 7, 10), Path((Name("ids"),)): torch.ones(3, dtype=torch.int64)}, 14),
        ({Path((Name("pixels"),)): torch.ones(1, 3, 32, 32)}, 96),
        ({Path((Name("x"),)): torch.ones(2, 10), CACHE: torch.ones(2, 4, 100, 8)}, 2),
        ({Path((Name("flag"),)): True}, 1),
    ],
)
def test_the_work_is_the_parameters_times_the_rows(values: Any, rows: int) -> None:
    assert work_of(MODEL, values) == 100 * rows


def test_what_is_no_module_is_no_work() -> None:
    assert work_of(lambda x: x, {}) == 0


def test_half_a_billion_parameters_are_run_on_a_short_prompt() -> None:
    assert 500_000_000 * 16 < MOST_WORK < 500_000_000 * 1024
