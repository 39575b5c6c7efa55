"""What the source says of lists that a loop goes over, and of names to which it adds."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from onlooker.model_source.source_loops import (
    counted_names,
    names_added_to,
    names_given,
    readers_of_list,
)


class Numbers:
    """Notes what reads its list."""

    def __init__(self) -> None:
        self.found: list[frozenset[str]] = []

    def tolist(self) -> list[int]:
        frame = sys._getframe(1)
        self.found.append(readers_of_list(frame.f_code, frame.f_lasti))
        return [1, 2]


def split(values: object, lengths: object) -> list[object]:
    return [values, lengths]


def loop(numbers: Numbers) -> None:
    for _ in numbers.tolist():
        pass


def comprehension(numbers: Numbers) -> object:
    return [one + 1 for one in numbers.tolist()]


def zipped(numbers: Numbers) -> object:
    return [a + b + c for a, (b, c) in enumerate(zip(numbers.tolist(), range(2), strict=True))]


def parts(numbers: Numbers) -> object:
    return split(numbers, numbers.tolist())


def named(numbers: Numbers) -> object:
    lengths = numbers.tolist()
    for one in lengths:
        split(numbers, one)
    return split(numbers, lengths)


def made_a_tensor(numbers: Numbers) -> object:
    return torch.tensor(numbers.tolist(), dtype=torch.int32)


def counted(numbers: Numbers) -> object:
    return len(numbers.tolist())


def named_and_counted(numbers: Numbers) -> object:
    lengths = numbers.tolist()
    return [one * 2 for one in lengths], len(lengths)


def given_twice(numbers: Numbers) -> object:
    lengths = numbers.tolist()
    lengths = [*lengths, 3]
    return [one * 2 for one in lengths]


def added(numbers: Numbers) -> object:
    return [one * 2 for one in numbers.tolist() * 2]


def kept(numbers: Numbers) -> object:
    found: list[int] = [0]
    found.extend(numbers.tolist())
    return found


READERS: dict[Callable[[Numbers], object], set[str]] = {
    loop: {"for"},
    comprehension: {"for"},
    zipped: {"for"},
    parts: {"split"},
    named: {"for", "split"},
    made_a_tensor: {"tensor"},
}


@pytest.mark.parametrize("run", READERS)
def test_loops_and_functions_of_torch_read_a_list(run: Callable[[Numbers], object]) -> None:
    numbers = Numbers()
    run(numbers)
    assert numbers.found == [READERS[run]]


@pytest.mark.parametrize("run", [counted, named_and_counted, given_twice, added, kept])
def test_a_list_is_read_by_others_too(run: Callable[[Numbers], object]) -> None:
    numbers = Numbers()
    run(numbers)
    assert numbers.found == [frozenset()]


def sums(lengths: list[int]) -> tuple[int, int, int]:
    start, end, greatest = 0, 1, 0
    for length in lengths:
        start += length
        end = end + length
        greatest = max(greatest, length)
    return start, end, greatest


def test_names_to_which_a_loop_adds() -> None:
    line = sums.__code__.co_firstlineno + 2
    assert names_added_to(__file__, line) == {"start", "end"}
    assert names_added_to(__file__, line + 1) == set()


@pytest.mark.parametrize(
    ("steps", "found"),
    [
        (["use(n)", "n += 1"], {"n": "1"}),
        (["use(n)", "n = k + n"], {"n": "k"}),
        (["use(n)", "n -= 2"], {"n": "-2"}),
        (["end = n + k", "use(n, end)", "n = end"], {"n": "k"}),
        (["with block:", "    n = n + k - 1", "    use(n)"], {"n": "k - 1"}),
        (["n += 1"], {"n": "1"}),
        (["use(n)", "n += row"], {}),
        (["use(n)", "n += k", "k = 2"], {}),
        (["use(n)", "n += size_of(k)"], {}),
        (["use(n)", "n *= 2"], {}),
        (["if use(n):", "    n += 1"], {}),
        (["use(n)", "n += 1", "if row:", "    n = 0"], {}),
        (["use(n)", "n += n"], {}),
    ],
)
def test_what_each_step_adds_to_a_name_is_found(steps: list[str], found: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "loops.py"
    file.write_text("\n".join(["for row in rows:", *(f"    {step}" for step in steps)]))
    counted = counted_names(str(file), 1)
    assert {name: ast.unparse(added) for name, added in counted.items()} == found


@pytest.mark.parametrize(
    ("head", "item", "given"),
    [
        ("for n in sizes:", 3, {"n": 3}),
        ("for row, (n, m) in zip(rows, sizes):", (None, (3, 4)), {"row": None, "n": 3, "m": 4}),
        ("for i, (n, m) in enumerate(sizes):", (3, 4), {"i": None, "n": 3, "m": 4}),
        ("for n, m in sizes:", (3, 4, 5), {}),
        ("for table[0] in sizes:", 3, {}),
        ("while n < 3:", 3, {}),
    ],
)
def test_the_names_of_an_item_are_those_of_its_parts(
    head: str, item: Any, given: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "loops.py"
    file.write_text(f"{head}\n    use(n)")
    assert names_given(str(file), 1, item) == given


@pytest.mark.parametrize(("steps", "found"), [(["start += n"], {"start": "n"}), (["n += 1", "start += n"], {})])
def test_a_name_that_is_the_same_in_each_step_may_be_added(
    steps: list[str], found: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "loops.py"
    file.write_text("\n".join(["for n in sizes:", *(f"    {step}" for step in steps)]))
    counted = counted_names(str(file), 1, {"n"})
    assert "start" not in counted_names(str(file), 1)
    assert {name: ast.unparse(added) for name, added in counted.items() if name == "start"} == found
