"""Items of a list that say the same are one text, and no text is lost."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onlooker.core.drawing.alike import first_of, folded, folded_rows

INDICES = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), unique=True, max_size=12)


def numbers(text: str) -> list[int]:
    """The numbers of ``0..2, 5``."""
    found = []
    for part in text.split(", "):
        first, _, last = part.partition("..")
        found += range(int(first), int(last or first) + 1)
    return found


def unfolded(text: str) -> list[str]:
    """All texts that a folded one stands for, where its indices vary independently."""
    parts = re.split(r"\[([\d., ]+)\]", text)
    choices = itertools.product(*map(numbers, parts[1::2]))
    return [
        "".join(itertools.chain(*itertools.zip_longest(parts[::2], [f"[{n}]" for n in choice], fillvalue="")))
        for choice in choices
    ]


@given(INDICES)
def test_what_was_folded_can_be_unfolded(pairs: list[tuple[int, int]]) -> None:
    texts = [f"xs[{one}].ys[{two}]" for one, two in pairs]
    tied = bool(pairs) and len(pairs) > 1 and all(one == two for one, two in pairs)
    again = [text for line in folded(texts) for text in unfolded(line)]
    wanted = set(texts)
    assert {text for text in again if not tied or len(set(re.findall(r"\d+", text))) == 1} == wanted
    assert len(folded(texts)) <= len(texts)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([], []),
        (["x", "x"], ["x"]),
        (["a[3]"], ["a[3]"]),
        (["a[0]", "a[1]"], ["a[0..1]"]),
        (["a[0]", "b[1]"], ["a[0]", "b[1]"]),
        (["a[0]", "a[2]", "a[4]"], ["a[0, 2, 4]"]),
        (["a[1].x", "b", "a[0].x"], ["a[0..1].x", "b"]),
        (["x.shape[0]", "x.shape[1]"], ["x.shape[0]", "x.shape[1]"]),
        (["a['0']", "a['1']"], ["a['0']", "a['1']"]),
        (["d['k'][0]", "d['k'][1]"], ["d['k'][0..1]"]),
        ([f"a[{i}].b[{j}]" for i in range(2) for j in range(3)], ["a[0..1].b[0..2]"]),
        ([f"a[{i}] == a[0]" for i in range(1, 9)], ["a[1..8] == a[0]"]),
        ([f"a[{i}] == b[{i}]" for i in range(9)], ["a[0..8] == b[0..8]"]),
        (["a[0] is [4]", "a[1] is [4]"], ["a[0..1] is [4]"]),
    ],
)
def test_texts_that_differ_in_indices_alone_are_one(texts: list[str], expected: list[str]) -> None:
    assert folded(texts) == expected


def test_rows_are_alike_in_all_cells() -> None:
    rows = [("p[0].k", "4"), ("p[0].v", "4"), ("p[1].k", "4"), ("p[1].v", "5"), ("p[2].k", "5")]
    assert folded_rows(rows) == [("p[0..1].k", "4"), ("p[0].v", "4"), ("p[1].v", "5"), ("p[2].k", "5")]


@pytest.mark.parametrize("text", ["a[0..3].b", "a[0, 2].b", "a[0..1, 4].b", "a[0].b"])
def test_a_folded_path_leads_to_the_first_one(text: str) -> None:
    assert first_of(text) == "a[0].b"
