"""What the regions of a contract serve, in few words: exact where it says so, and never more than the regions."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onlooker.contract.served import ServedSizes, served_sizes
from onlooker.core.contract import Constraint, Origin, Region
from onlooker.core.plan import Symbol
from onlooker.core.sizes.formula import holds, negated


def region(*formulas: str) -> Region:
    return Region(tuple(Constraint(formula, Origin.MODEL) for formula in formulas))


def told(symbols: Sequence[Symbol], *regions: Region) -> ServedSizes:
    return served_sizes([(symbols, regions)])


N, K, P = Symbol("n"), Symbol("k"), Symbol("past", low=0)


def words(found: ServedSizes) -> list[str]:
    return [each.words for each in found.sets]


@pytest.mark.parametrize(
    ("symbols", "regions", "expected"),
    [
        ((N,), [region()], ["n 1 and more"]),
        ((Symbol("n", low=2, high=64, step=8),), [region()], ["n 8 to 64, in steps of 8"]),
        ((N,), [region("n <= 24"), region("n > 24")], ["n 1 and more"]),
        ((N,), [region("n >= 3"), region("(-1) + n == 1"), region("n == 1")], ["n 1 and more"]),
        ((N,), [region("n > 24", "n > 3", "not (n <= 24)")], ["n 25 and more"]),
        ((N,), [region("2*n >= 7")], ["n 4 and more"]),
        ((N,), [region("n != 4")], ["n 1 to 3 or 5 and more"]),
        ((N,), [region("n % 16 == 0")], ["n 16 and more, in steps of 16"]),
        ((N,), [region("n % 4 == 0", "n % 6 == 0", "n <= 48")], ["n 12 to 48, in steps of 12"]),
        ((N,), [region("n == 8", "n % 4 == 0")], ["n 8"]),
        ((N,), [region("n % 2 == 0"), region("n % 2 == 1"), region("n == 7")], ["n 1 and more"]),
        ((N, P), [region("n + past <= 64")], ["n 1 and more", "past 0 and more", "n + past 1 to 64"]),
        ((N, P), [region("n + past <= 64"), region("64 < past + n")], ["n 1 and more", "past 0 and more"]),
        ((N, P), [region("n*past != 0"), region("past*n == 0")], ["n 1 and more", "past 0 and more"]),
        ((N,), [region("n // 2 > 3"), region("not n // 2 > 3")], ["n 1 and more"]),
        ((N,), [region("(n - 1) // 2 + 1 > 3")], ["n 7 and more"]),
        ((N,), [region("((-1 + n) // 2 + 1) // 4 != 2", "n <= 100")], ["n 1 to 14 or 23 to 100"]),
        ((N,), [region("1 % (1 + (-1 + n) // 2) != 0")], ["n 3 and more"]),
        ((N,), [region("5 - min(n, 9) >= 1")], ["n 1 to 4"]),
        ((N,), [region("min(n, 9) < 12")], ["n 1 and more"]),
        ((N,), [region("n == 2 or n == 3")], ["n 1 and more", "(n == 2 or n == 3)"]),
        ((N,), [region("not (n == 2 or n == 3)")], ["n 1 and more", "not (n == 2 or n == 3)"]),
        ((N,), [region("True", "n > 4")], ["n 5 and more"]),
        ((N,), [region("n <= 40", "n % 16 == 0")], ["n 16 to 32, in steps of 16"]),
        ((Symbol("n", low=0, high=7),), [region("n % 2 == 0")], ["n 0 to 6, in steps of 2"]),
        (
            (N, K),
            [region("n*k > 1", "n > 1"), region("n*k > 1", "k > 1"), region("n == 1", "k == 1")],
            ["n 1 and more", "k 1 and more"],
        ),
    ],
    ids=str,
)
def test_what_is_served_is_told_in_few_words(
    symbols: Sequence[Symbol], regions: list[Region], expected: list[str]
) -> None:
    found = told(symbols, *regions)
    assert found.exact
    assert words(found) == expected


def test_six_regions_that_cover_everything_are_no_condition() -> None:
    found = told(
        (N, K),
        region("n >= 3", "k >= 2"),
        region("(-1) + n == 1", "k >= 2"),
        region("n == 1", "k >= 2"),
        region("k == 1", "n > 2"),
        region("k == 1", "n == 2"),
        region("k == 1", "n < 2"),
    )
    assert (words(found), found.limited, found.exact) == (["n 1 and more", "k 1 and more"], (), True)


def test_a_corner_that_is_missing_is_not_forgotten() -> None:
    found = told((N, K), region("n >= 2"), region("k >= 2"))
    assert not found.exact
    assert found.cases == ("n 2 and more", "k 2 and more")


def test_a_region_inside_of_another_one_is_not_told() -> None:
    found = told((N, K), region("n >= 2"), region("n >= 4", "k == 3"), region("k >= 2"), region("n >= 2"))
    assert found.cases == ("n 2 and more", "k 2 and more")


def test_odd_sizes_are_no_interval() -> None:
    found = told((N,), region("n % 2 == 1"))
    assert not found.exact
    assert found.limited == ("n",)


def test_two_graphs_serve_what_both_ranges_have() -> None:
    short, long = Symbol("n", high=24), Symbol("n", low=30)
    found = served_sizes([((short,), [region()]), ((long,), [region("n != 40")])])
    assert words(found) == ["n 1 to 24 or 30 to 39 or 41 and more"]


def test_a_region_without_sizes_serves_nothing() -> None:
    found = told((N,), region("n > 4", "n < 3"))
    assert not found.exact
    assert found.limited == ("n",)


def test_fractions_are_not_taken_for_ints() -> None:
    assert not told((N,), region("n / 2 <= 3"), region("n / 2 >= 4")).exact


SIZES = range(13)
NUMBERS = st.integers(0, 9)
TERMS = st.sampled_from(
    [
        "n",
        "k",
        "n + k",
        "n - k",
        "2*n",
        "3*n - k",
        "n*k",
        "min(n, k)",
        "n // 2",
        "(n + 3) // 4 - k",
        "max(n, 3) // 2 + n",
        "(-1) + n",
    ]
)
COMPARISONS = st.builds("{} {} {}".format, TERMS, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), NUMBERS)
REMAINDERS = st.builds("({}) % {} == {}".format, TERMS, st.integers(2, 4), st.integers(0, 2))
FORMULAS = st.one_of(COMPARISONS, REMAINDERS)
BOTH = FORMULAS.flatmap(lambda text: st.sampled_from([text, negated(text)]))
REGIONS = st.lists(st.builds(region, BOTH), min_size=0, max_size=1).flatmap(
    lambda first: st.lists(
        st.builds(lambda some: region(*some), st.lists(BOTH, max_size=3)), min_size=1, max_size=5
    ).map(lambda others: [*first, *others])
)


@settings(max_examples=400, deadline=None)
@given(REGIONS, st.integers(0, 3), st.one_of(st.none(), st.integers(6, 12)))
@pytest.mark.slow
def test_what_is_told_to_be_served_is_what_the_regions_hold(regions: list[Region], low: int, high: int | None) -> None:
    symbols = (Symbol("n", low=low, high=high), Symbol("k", low=0))
    found = told(symbols, *regions)
    for n, k in itertools.product(SIZES, SIZES):
        sizes = {"n": n, "k": k}
        if not symbols[0].allows(n):
            continue
        is_served = any(one.holds(sizes) for one in regions)
        terms = [each for each in found.sets if each.term in found.limited]
        is_told = all(each.holds(_value(each.term, sizes)) for each in terms)
        if found.exact:
            assert is_told == is_served, (sizes, found)
        else:
            assert is_told or not is_served, (sizes, found)


def _value(term: str, sizes: dict[str, int]) -> int:
    return next(value for value in range(-200, 300) if holds(f"({term}) == {value}", sizes))
