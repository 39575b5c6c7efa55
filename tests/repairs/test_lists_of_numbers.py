"""Loops whose steps add the numbers of a tensor to a list are one graph for all numbers of steps, or are never
wrong.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence

import pytest
import torch

from onlooker import InputObserver, Program, RejectedCallError
from slow_runs import runs

Run = Callable[[torch.Tensor], object]


class Numbers(torch.nn.Module):
    """Runs a function of the lengths of parts."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run

    def forward(self, lengths: torch.Tensor) -> object:
        return self.run(lengths)


class Counted(list[int]):
    """A list that knows how many numbers it got last."""

    length = 0

    def extend(self, numbers: Iterable[int]) -> None:
        self.length = len(list(numbers))


def ends_of_parts(lengths: torch.Tensor) -> object:
    ends, parts = [0], []
    for length in lengths.tolist():
        numbers = torch.arange(length)
        places = (numbers[numbers % 3 != 1] + 1).cumsum(0) + ends[-1]
        ends.extend(places.tolist())
        parts.append(numbers * ends[-1])
    return torch.tensor(ends, dtype=torch.int32), torch.cat(parts)


def windows(lengths: torch.Tensor) -> object:
    index: list[torch.Tensor] = []
    ends: list[int] = [0]
    start = 0
    for length in lengths.tolist():
        length = int(length)
        padded = torch.nn.functional.pad(torch.arange(length), (0, 3 - length % 3), "constant", -1)
        counts = (padded.reshape(-1, 3) != -1).sum(1)
        index.append(padded[padded != -1] + start)
        ends.extend((counts.cumsum(0) + ends[-1]).tolist())
        start += length
    found = torch.unique_consecutive(torch.tensor(ends))
    return torch.cat(index), found[1:] - found[:-1]


def nothing_before(lengths: torch.Tensor) -> object:
    numbers = []
    for length in lengths.tolist():
        numbers.extend((torch.arange(length) * length).tolist())
    return torch.tensor(numbers) + 1


def as_many_in_each_step(lengths: torch.Tensor) -> object:
    numbers = [7, 5]
    for length in lengths.tolist():
        numbers.extend((torch.arange(3) * length - numbers[-1]).tolist())
    numbers.append(4)
    return torch.as_tensor(numbers)


def of_another_type(lengths: torch.Tensor) -> object:
    numbers = [3]
    for length in lengths.tolist():
        numbers.extend((torch.arange(length, dtype=torch.int16) + numbers[-1]).tolist())
    return torch.tensor(numbers)


def first_number(lengths: torch.Tensor) -> object:
    numbers = [1]
    for length in lengths.tolist():
        numbers.extend((torch.arange(length) + numbers[0]).tolist())
    return torch.tensor(numbers)


def number_before_the_last(lengths: torch.Tensor) -> object:
    numbers = [1, 2]
    for length in lengths.tolist():
        numbers.extend((torch.arange(length) + numbers[-2]).tolist())
    return torch.tensor(numbers)


def extended_twice(lengths: torch.Tensor) -> object:
    numbers = [1]
    for length in lengths.tolist():
        numbers.extend(torch.arange(length).tolist())
        numbers.extend((torch.arange(2) + numbers[-1]).tolist())
    return torch.tensor(numbers)


def extended_by_others(lengths: torch.Tensor) -> object:
    numbers = [1]
    for length in lengths.tolist():
        numbers.extend(torch.arange(length).tolist())
        numbers.append(4)
    return torch.tensor(numbers)


def changed_in_place(lengths: torch.Tensor) -> object:
    numbers = [1]
    for length in lengths.tolist():
        numbers[-1] = numbers[-1] + 3
        numbers.extend((torch.arange(length) + numbers[-1]).tolist())
    return torch.tensor(numbers)


def changed_afterwards(lengths: torch.Tensor) -> object:
    numbers = [1]
    for length in lengths.tolist():
        numbers.extend((torch.arange(length) + numbers[-1]).tolist())
    numbers[-1] = 100
    return torch.tensor(numbers)


def turned_around(lengths: torch.Tensor) -> object:
    numbers = [1]
    for length in lengths.tolist():
        numbers.extend((torch.arange(length) + numbers[-1]).tolist())
    numbers.reverse()
    return torch.tensor(numbers)


def last_number_decides(lengths: torch.Tensor) -> object:
    numbers, parts = [0], []
    for length in lengths.tolist():
        parts.append(torch.ones(length) * 2 if numbers[-1] > 4 else torch.ones(length))
        numbers.extend((torch.arange(length) + numbers[-1]).tolist())
    return torch.tensor(numbers), torch.cat(parts)


def last_number_is_zero(lengths: torch.Tensor) -> object:
    numbers, parts = [0], []
    for length in lengths.tolist():
        parts.append(torch.ones(length) * 2 if numbers[-1] == 0 else torch.ones(length))
        numbers.extend((torch.arange(length) + numbers[-1]).tolist())
    return torch.tensor(numbers), torch.cat(parts)


def counted_by_itself(lengths: torch.Tensor) -> object:
    numbers, parts = Counted([0]), []
    for length in lengths.tolist():
        numbers.extend((torch.arange(length) + 1).tolist())
        parts.append(torch.arange(length) + numbers.length)
    return torch.cat(parts)


def counted(lengths: torch.Tensor) -> object:
    numbers, parts = [0], []
    for length in lengths.tolist():
        parts.append(torch.ones(length) * (2 if len(numbers) > 6 else 1))
        numbers.extend((torch.arange(length) + 1).tolist())
    return torch.tensor(numbers), torch.cat(parts)


def counted_after_the_loop(lengths: torch.Tensor) -> object:
    numbers = [0]
    for length in lengths.tolist():
        numbers.extend((torch.arange(length) + 1).tolist())
    return torch.tensor(numbers) * len(numbers)


def last_number_afterwards(lengths: torch.Tensor) -> object:
    numbers = [0]
    for length in lengths.tolist():
        numbers.extend((torch.arange(length) + numbers[-1]).tolist())
    return torch.tensor(numbers) * numbers[-1]


def length_of_the_last_number(lengths: torch.Tensor) -> object:
    numbers, parts = [2], []
    for length in lengths.tolist():
        parts.append(torch.ones(numbers[-1]))
        numbers.extend(((torch.arange(length) + numbers[-1]) % 5).tolist())
    return torch.tensor(numbers), torch.cat(parts)


def total_of_last_numbers(lengths: torch.Tensor) -> object:
    numbers, total, parts = [2], 0, []
    for length in lengths.tolist():
        total += numbers[-1]
        numbers.extend((torch.arange(length) + total).tolist())
        parts.append(torch.arange(length) + total)
    return torch.tensor(numbers), torch.cat(parts)


def kept_by_another_name(lengths: torch.Tensor) -> object:
    numbers = others = [2]
    for length in lengths.tolist():
        numbers.extend((torch.arange(length) + others[-1]).tolist())
    return torch.tensor(numbers) + sum(others)


def outer_numbers(lengths: torch.Tensor) -> object:
    numbers, some, parts = [2], torch.arange(3), []
    for length in lengths.tolist():
        numbers.extend(some.tolist())
        parts.append(torch.arange(length) + numbers[-1])
    return torch.tensor(numbers), torch.cat(parts)


def truths(lengths: torch.Tensor) -> object:
    numbers = [True]
    for length in lengths.tolist():
        numbers.extend((torch.arange(length) > 2).tolist())
    return torch.tensor(numbers)


def floats(lengths: torch.Tensor) -> object:
    numbers = [0.5]
    for length in lengths.tolist():
        numbers.extend((torch.arange(length) + 1).tolist())
    return torch.tensor(numbers)


SERVED = [ends_of_parts, windows, nothing_before, as_many_in_each_step, of_another_type]
NEVER_WRONG = [
    first_number,
    number_before_the_last,
    extended_twice,
    extended_by_others,
    changed_in_place,
    changed_afterwards,
    turned_around,
    last_number_decides,
    last_number_is_zero,
    counted_by_itself,
    counted,
    counted_after_the_loop,
    last_number_afterwards,
    length_of_the_last_number,
    total_of_last_numbers,
    kept_by_another_name,
    outer_numbers,
    truths,
    floats,
]
SLOW = {*SERVED, *NEVER_WRONG} - {first_number, extended_twice}


@functools.cache
def exported(run: Run) -> tuple[Numbers, Program]:
    model, observer = Numbers(run).eval(), InputObserver()
    with torch.no_grad(), observer(model):
        model(torch.tensor([3, 5]))
        model(torch.tensor([4, 2, 6]))
    return model, observer.export()


def leaves(result: object) -> list[torch.Tensor]:
    return list(result) if isinstance(result, tuple) else [result]  # type: ignore[list-item]


def agree(program: Program, model: Numbers, lengths: Sequence[int]) -> bool:
    """True where a call is exact, False where the program refuses it."""
    given = torch.tensor(lengths, dtype=torch.int64)
    try:
        got = program(given)
    except RejectedCallError:
        return False
    with torch.no_grad():
        expected = model(given)
    for one, other in zip(leaves(got), leaves(expected), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    return True


@pytest.mark.parametrize("run", runs(SERVED, SLOW))
def test_numbers_that_steps_add_to_a_list_are_served_for_other_numbers_of_steps(run: Run) -> None:
    model, program = exported(run)
    for lengths in ((7,), (3, 5, 2, 4), (2, 2), (9, 3, 4, 5, 6, 2, 8)):
        assert agree(program, model, lengths), lengths
    for lengths in ((1,), (1, 1, 4), (3, 0, 2), (0, 4), (0,), ()):  # refused, or right
        agree(program, model, lengths)
    assert program.verify().verified
    assert len(program.graphs) == 1


@pytest.mark.parametrize("run", runs(NEVER_WRONG, SLOW))
@pytest.mark.slow
def test_what_else_is_done_with_such_a_list_is_never_wrong(run: Run) -> None:
    model, program = exported(run)
    calls = ((3, 5), (4, 2, 6), (7,), (1, 1), (5, 3), (2, 8, 8), (1, 2, 3, 4), (8, 1, 8, 1, 8))
    served = [agree(program, model, lengths) for lengths in calls]
    assert all(served[:2])


class OfIndices(torch.nn.Module):
    """Reads a tensor that is made of a list with a number of each step."""

    def __init__(self, read: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.read = read

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.read(x)


def beside_each_other(x: torch.Tensor) -> torch.Tensor:
    n = x.shape[1]
    pairs = torch.tensor([[i, n - 1 - i] for i in range(n)])
    return x[:, pairs[:, 1]] * pairs[:, :1]


OF_STEPS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "ints": lambda x: x * torch.tensor([2 * i + 1 for i in range(x.shape[1])])[:, None],
    "ints of another dtype": lambda x: (
        x * torch.tensor([3 * i for i in range(x.shape[1])], dtype=torch.float64)[:, None]
    ),
    "sizes": lambda x: x * torch.tensor([i * x.shape[0] for i in range(x.shape[1])])[:, None],
    "floats": lambda x: x * torch.tensor([0.9**i for i in range(x.shape[1])])[:, None],
    "backwards": lambda x: x * torch.tensor([i / 7 for i in range(x.shape[1])][::-1])[:, None],
    "ints backwards": lambda x: x * torch.tensor([i * 2 for i in range(x.shape[1])][::-1])[:, None],
    "pairs": beside_each_other,
    "pairs with a float": lambda x: x * torch.tensor([[i, 0.5] for i in range(x.shape[1])]).sum(1)[:, None],
    "rows": lambda x: x[:, [x.shape[1] - 1 - i for i in range(x.shape[1])]],
    "rows of a range": lambda x: x[:, list(range(x.shape[1] - 1, -1, -1))],
    "rows of a reversed range": lambda x: x[:, list(reversed(range(x.shape[1])))],
    "rows of two ranges": lambda x: x[:, list(range(1, x.shape[1])) + list(range(1))],
    "a row beside a range": lambda x: x[:, [0] + list(range(x.shape[1] - 1))],  # noqa: RUF005
}


def program_of_steps(read: Callable[[torch.Tensor], torch.Tensor]) -> Program:
    observer, model = InputObserver(), OfIndices(read)
    with observer(model):
        model(torch.randn(2, 6, 3))
    return observer.export()


@pytest.mark.parametrize("read", OF_STEPS.values(), ids=OF_STEPS)
@pytest.mark.one_in(4)
def test_a_list_with_a_number_of_each_step_holds_for_all_lengths(read: Callable[[torch.Tensor], torch.Tensor]) -> None:
    program = program_of_steps(read)
    assert program.verify().verified
    for batch, length in ((2, 9), (3, 5), (1, 6), (2, 90)):
        x = torch.randn(batch, length, 3)
        torch.testing.assert_close(program(x), read(x))


def in_another_order(x: torch.Tensor) -> torch.Tensor:
    rows = [i + 1 for i in range(x.shape[1])]
    rows[0], rows[-1] = rows[-1], rows[0]
    return x * torch.tensor(rows)[:, None]


def some_of_them(x: torch.Tensor) -> torch.Tensor:
    return x * torch.tensor([i * 2 for i in range(x.shape[1])][::2]).sum()


OF_THEIR_LENGTH: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "one number": lambda x: x * torch.tensor([1.5 for _ in range(x.shape[1])]).sum(),
    "one size": lambda x: x * torch.tensor([x.shape[0] for _ in range(x.shape[1])]).sum(),
    "another order": in_another_order,
    "some of them": some_of_them,
    "sorted": lambda x: x * torch.tensor(sorted([-i for i in range(x.shape[1])]))[:, None],
}


@pytest.mark.parametrize("read", OF_THEIR_LENGTH.values(), ids=OF_THEIR_LENGTH)
@pytest.mark.one_in(2)
def test_a_list_of_other_numbers_holds_for_its_length(read: Callable[[torch.Tensor], torch.Tensor]) -> None:
    program = program_of_steps(read)
    assert program.verify().verified
    x = torch.randn(3, 6, 3)
    torch.testing.assert_close(program(x), read(x))
    with pytest.raises(RejectedCallError):
        program(torch.randn(2, 9, 3))
