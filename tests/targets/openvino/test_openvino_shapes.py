"""The ranges of sizes, as a model of OpenVINO has them."""

from __future__ import annotations

import pytest

from onlooker.core.plan import Symbol
from onlooker.core.sizes.expression import Expression
from onlooker.targets.openvino.shapes import range_of
from plans import plan_with

SYMBOLS = [Symbol("a", low=2, high=8), Symbol("b", low=0), Symbol("c", low=1, high=3)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7", (7, 7)),
        ("a", (2, 8)),
        ("b", (0, None)),
        ("a + 3*c", (5, 17)),
        ("a - c", (0, 7)),
        ("a + b", (2, None)),
        ("20 - a", (12, 18)),
        ("4096 - b", (0, None)),
        ("(a - 1)//2 + 1", (1, 4)),
    ],
)
def test_the_range_of_an_expression_is_that_of_its_symbols(text: str, expected: tuple[int, int | None]) -> None:
    expression = Expression.parse(text)
    assert range_of(plan_with(SYMBOLS, expression), expression) == expected
