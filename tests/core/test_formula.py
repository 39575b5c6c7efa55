"""Formulas are data: read from a file without evaluating code, evaluated, renamed."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onlooker.core.errors import UsageError
from onlooker.core.sizes.formula import holds, read_formula, renamed, variables_of


@pytest.mark.parametrize(
    ("text", "sizes", "expected"),
    [
        ("n > 24", {"n": 25}, True),
        ("n > 24", {"n": 24}, False),
        ("n % 4 == 0 and k != 1", {"n": 8, "k": 2}, True),
        ("min(n, 15) == max(k, 3)", {"n": 20, "k": 15}, True),
        ("not (n == 3) or k >= 2", {"n": 3, "k": 1}, False),
        ("float(n) ** 0.5 < 4.0", {"n": 9}, True),
        ("8 // n == 2", {"n": 0}, False),
        ("abs(-19 + n) > 1", {"n": 18}, False),
    ],
)
def test_a_formula_holds_or_not(text: str, sizes: dict[str, int], expected: bool) -> None:
    assert holds(text, sizes) is expected


def test_the_variables_of_a_formula_are_renamed_wherever_they_stand() -> None:
    tree = read_formula("min < 2 * k or min(min, k) == 3", ["min", "k"])
    assert variables_of(tree) == ("min", "k")
    assert renamed(tree, {"min": "x.shape[0]", "k": "n"}.__getitem__) == "x.shape[0] < 2 * n or min(x.shape[0], n) == 3"


@pytest.mark.parametrize(
    "text",
    [
        "open('/etc/passwd')",
        "__import__('os').system('true')",
        "x.__class__",
        "x.shape[0].__class__",
        "x.shape[y]",
        "x.data[0]",
        "y.shape[0] == 1",
        "(lambda: 1)()",
        "[n for n in (1,)]",
        "9 ** 9 ** 9",
        "1 << 99",
        "min(1, key=print)",
        "math.factorial(9)",
        "x.shape[0] if True else print",
        "f'{x}'",
        "'a' * 9",
        "n := 3",
        "(" * 300 + "n" + ")" * 300,
        "-" * 300 + "n",
        "not " * 100_000 + "n",
        "n ==",
        "",
        "\x00",
    ],
)
def test_what_is_no_comparison_of_sizes_is_refused_before_it_is_evaluated(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_formula(text, ["x", "n"])
    assert caught.value.slug == "bad-condition"


@given(st.text(max_size=40))
def test_any_text_is_a_formula_or_one_clear_error(text: str) -> None:
    with contextlib.suppress(UsageError):
        read_formula(text, ["x", "n"])
