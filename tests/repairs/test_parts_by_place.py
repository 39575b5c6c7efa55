"""Parts of a tensor that are read at a place, as ``x.unbind(1)[0]``: how many there are stays dynamic."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from onlooker import InputObserver, Program, RejectedCallError


class Reads(torch.nn.Module):
    def __init__(self, read: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.read = read

    def forward(self, x: Tensor) -> Tensor:
        return self.read(x * 2)


def rand(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def exported(model: Reads, *lengths: int) -> Program:
    observer = InputObserver()
    with observer(model):
        for batch, length in enumerate(lengths, 2):
            model(rand(batch, length, 4))
    return observer.export()


def at_both_ends(x: Tensor) -> Tensor:
    parts = x.unbind(1)
    return parts[0] * parts[-1] + parts[2]


def after_the_first(x: Tensor) -> Tensor:
    parts = x.unbind(1)
    state, found = parts[0], [parts[0]]
    for part in parts[1:]:
        state = (state + part).tanh()
        found.append(state)
    return torch.stack(found, 1)


def from_the_last(x: Tensor) -> Tensor:
    parts = x.unbind(1)
    state = parts[-1]
    for part in parts:
        state = (state - part).tanh()
    return state


def in_steps_of_another(x: Tensor) -> Tensor:
    parts, state, found = (x * 3).unbind(1), x[:, 0], []
    for part in x.unbind(1):
        state = (state + part * parts[0] - parts[-2]).tanh()
        found.append(state)
    return torch.stack(found, 1)


def of_some(x: Tensor) -> Tensor:
    parts = x.unbind(1)
    return parts[1:][0] - parts[::-1][0] + parts[::-1][-2] * parts[:-1][-1]


SERVED = [at_both_ends, after_the_first, from_the_last, in_steps_of_another, of_some]


@pytest.mark.parametrize("read", SERVED, ids=lambda read: read.__name__)
@pytest.mark.one_in(2)
def test_the_number_of_parts_stays_dynamic(read: Callable[[Tensor], Tensor]) -> None:
    model = Reads(read)
    program = exported(model, 7, 10)
    assert program.verify().verified
    for length in (4, 5, 8, 23):
        torch.testing.assert_close(program(rand(3, length, 4)), model(rand(3, length, 4)))


def added(x: Tensor) -> Tensor:
    parts = x.unbind(1)
    return parts[0] * len(parts + parts)


def repeated(x: Tensor) -> Tensor:
    parts = x.unbind(1)
    return parts[0] * len(2 * parts)


def counted_by_a_generator(x: Tensor) -> Tensor:
    parts = x.unbind(1)
    return parts[0] * sum(1 for _ in parts)


def counted_backwards(x: Tensor) -> Tensor:
    parts, n = x.unbind(1), 0
    for _ in reversed(parts):
        n += 1
    return parts[0] * n


def taken_apart(x: Tensor) -> Tensor:
    parts = x.unbind(1)
    *others, last = parts
    return parts[0] * len(others) + last


def some_counted(x: Tensor) -> Tensor:
    parts = x.unbind(1)
    return parts[0] * len([0 for _ in parts[1:]]) + parts[-1] * len(parts[::-1])


def at_two_steps(x: Tensor) -> Tensor:
    parts = x.unbind(1)
    return parts[0] * len(parts[::2])


def blocks(x: Tensor) -> Tensor:
    parts = x.split(4, 1)
    return parts[1].sum(1) + parts[0].sum(1)


def last_of_blocks(x: Tensor) -> Tensor:
    parts = x.split(4, 1)
    return parts[-1].sum(1) - parts[-2].sum(1)


def blocks_in_blocks(x: Tensor) -> Tensor:
    parts, found = (x * 3).split(4, 1), []
    for part in x.split(4, 1):
        found.append(sum((part @ other.transpose(1, 2)).sum(-1) for other in parts))
    return torch.cat(found, 1)


COUNTED = [added, repeated, counted_by_a_generator, counted_backwards, taken_apart, some_counted, at_two_steps]


@pytest.mark.parametrize("read", [*COUNTED, blocks, last_of_blocks], ids=lambda read: read.__name__)
@pytest.mark.one_in(2)
def test_parts_that_are_counted_are_never_wrong(read: Callable[[Tensor], Tensor]) -> None:
    model = Reads(read)
    program = exported(model, 5, 7)
    assert program.verify().verified
    for length in (5, 6, 7, 8, 9, 13):
        x = rand(3, length, 4)
        try:
            found = program(x)
        except RejectedCallError:
            assert length not in (5, 7)
            continue
        torch.testing.assert_close(found, model(x))


@pytest.mark.slow
def test_chunks_in_a_loop_over_chunks_are_served_for_as_many_chunks() -> None:
    model = Reads(blocks_in_blocks)
    program = exported(model, 5, 7)
    torch.testing.assert_close(program(rand(1, 6, 4)), model(rand(1, 6, 4)))
    with pytest.raises(RejectedCallError):
        program(rand(1, 9, 4))
