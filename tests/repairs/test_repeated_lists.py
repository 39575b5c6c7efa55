"""``[0] * len(x)``: a list whose number of items is a size."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from onlooker import InputObserver, Program, RejectedCallError

Run = Callable[[torch.Tensor], object]


def numbers(x):
    return x + torch.tensor([2] * len(x)).unsqueeze(-1)


def floats(x):
    return x * torch.tensor([0.5] * x.shape[0], dtype=torch.float64).unsqueeze(-1)


def lengths(x):
    return x * torch.tensor([x.shape[1]] * x.shape[0]).unsqueeze(-1)


def sides(x):
    return x.sum() * torch.as_tensor([[x.shape[0], 3]] * x.shape[1])


def of_two(x):
    return torch.tensor(x.shape[0] * [1, 2])


def by_name(x):
    sizes = [x.shape[1]] * x.shape[0]
    return torch.tensor(sizes, device=x.device)


def of_this_kind(x):
    return x.new_tensor([1.5] * len(x))


def joined(x):
    return torch.cat([x] * len(x), dim=1)


def joined_last(x):
    return torch.cat([x, 2 * x] * len(x), -1)


def stacked(x):
    return torch.stack([x] * x.shape[1], dim=1)


def stacked_last(x):
    return torch.stack([x.sum(0)] * len(x), -1)


def first(x):
    sides = [(x.shape[1], 2 * x.shape[1])] * len(x)
    return x.repeat(1, sides[0][1]), sides[-1][0] * x


SERVED = (
    *(numbers, floats, lengths, sides, of_two, by_name, of_this_kind),
    *(joined, joined_last, stacked, stacked_last, first),
)


def changed(x):
    items = [1] * len(x)
    items[0] = 5
    return torch.tensor(items)


def longer(x):
    items = [1] * len(x)
    items.append(7)
    return torch.tensor(items)


def sorted_ones(x):
    items = [2, 1] * len(x)
    items.sort()
    return torch.tensor(items)


def base_changes(x):
    base = [1]
    items = base * len(x)
    base.append(2)
    return torch.tensor(items)


def counted(x):
    return x * len([0] * len(x))


def added(x):
    return torch.tensor([9] + [0] * len(x)), torch.tensor([0] * len(x) + [9])


def twice(x):
    return torch.tensor([1] * len(x) * 2)


def in_a_loop(x):
    return x + sum(number for number in [3] * len(x))


def zipped(x):
    return torch.stack([row * number for row, number in zip(x, [3] * len(x), strict=True)])


def unpacked(x):
    return torch.tensor([*([4] * len(x)), 1])


def second(x):
    return x * ([2, 3] * len(x))[2]


def as_a_shape(x):
    return torch.ones([1] * len(x)).sum() * x


def asked(x):
    return x if 4 in [4] * len(x) else -x


def as_text(x):
    return x * len(str([1] * len(x)))


def returned(x):
    return x, [x.sum()] * len(x)


def as_a_tuple(x):
    return x * len(tuple([1] * len(x)))


OTHERS = (
    *(changed, longer, sorted_ones, base_changes, counted, added, twice, in_a_loop, zipped, unpacked, second),
    *(as_a_shape, asked, as_text, returned, as_a_tuple),
)


class Runs(torch.nn.Module):
    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run

    def forward(self, x: torch.Tensor) -> object:
        return self.run(x)


def watched(run: Run, sizes: tuple[tuple[int, int], ...] = ((5, 3), (7, 4))) -> tuple[Runs, Program]:
    model, observer = Runs(run), InputObserver()
    with observer(model):
        for shape in sizes:
            model(torch.randn(shape))
    return model, observer.export()


def equal(got: object, expected: object) -> bool:
    if isinstance(expected, torch.Tensor):
        return isinstance(got, torch.Tensor) and got.dtype == expected.dtype and torch.equal(got, expected)
    assert type(got) is type(expected)
    return len(got) == len(expected) and all(map(equal, got, expected))


@pytest.mark.parametrize("run", SERVED)
def test_any_number_of_items_is_served(run: Run) -> None:
    model, program = watched(run)

    assert program.verify().verified
    assert len(program.graphs) == 1
    for shape in ((1, 3), (2, 6), (11, 9)):
        x = torch.randn(shape)
        assert equal(program(x), model(x))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("run", OTHERS)
def test_other_lists_are_right_or_refused(run: Run) -> None:
    model, program = watched(run)

    program.verify()
    for shape in ((5, 3), (7, 4), (1, 3), (2, 6), (11, 9)):
        x = torch.randn(shape)
        try:
            got = program(x)
        except RejectedCallError:
            assert shape not in ((5, 3), (7, 4))
        else:
            assert equal(got, model(x))
