"""``[0] * len(x)``: a list whose number of items is a size."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from onlooker import InputObserver, Program, RejectedCallError
from onlooker.repairs.numbers.repeated_lists import _Values

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


def values_of_dims(x):
    """The dimensions of a loss of MONAI."""
    x = x[None] * torch.ones(2, 1, 1)
    return torch.sum(x, dim=torch.arange(1, len(x.shape)).tolist())


SERVED = (
    values_of_dims,
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


@pytest.mark.one_in(4)
@pytest.mark.parametrize("run", SERVED)
def test_any_number_of_items_is_served(run: Run) -> None:
    model, program = watched(run)

    assert program.verify().verified
    assert len(program.graphs) == 1
    for shape in ((1, 3), (2, 6), (11, 9)):
        x = torch.randn(shape)
        assert equal(program(x), model(x))


@pytest.mark.one_in(4)
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


def masked(x, lengths):
    """The mask of ESPnet."""
    if not isinstance(lengths, list):
        lengths = lengths.long().tolist()
    number, longest = len(lengths), int(max(lengths))
    places = torch.arange(0, longest).unsqueeze(0).expand(number, longest)
    is_padding = places >= places.new(lengths).unsqueeze(-1)
    return x[:, :longest].masked_fill(is_padding.unsqueeze(-1), 0)


def packed(x, lengths, layer=None):
    """Rows are packed by an array of NumPy, as text encoders of speech models do."""
    rows = pack_padded_sequence(x, lengths.cpu().numpy(), batch_first=True, enforce_sorted=False)
    return pad_packed_sequence(layer(rows)[0], batch_first=True)[0]


def kinds(x, lengths):
    items, array = lengths.tolist(), lengths.numpy()
    known = [type(items) is list, isinstance(items, list), isinstance(array, np.ndarray), type(array) is np.ndarray]
    known += [not isinstance(array, list), not isinstance(items, (tuple, np.ndarray))]
    assert all(known), known
    return x * torch.tensor(items)[:, None, None] + torch.as_tensor(array).sum()


def made_again(x, lengths):
    return x * torch.tensor(lengths.tolist())[:, None, None], torch.as_tensor(lengths.int().numpy()) + lengths.shape[0]


def written_later(x, lengths):
    lengths = lengths.clone()
    numbers, shared = lengths.tolist(), lengths.numpy()
    lengths += 1
    return x * torch.tensor(numbers)[:, None, None], torch.as_tensor(shared)


def greatest(x, lengths):
    numbers = lengths.numpy()
    return x[:, : numbers.max()] * numbers.shape[0] + numbers.sum() - numbers.min()


def read(x, lengths):
    numbers = lengths.tolist()
    return x * sum(numbers) + numbers[0]


def changed_values(x, lengths):
    numbers = lengths.tolist()
    numbers[0] += 1
    return x * torch.tensor(numbers)[:, None, None]


def copied(x, lengths):
    numbers = copy.deepcopy(lengths.tolist())
    return x * torch.tensor(copy.copy(numbers))[:, None, None]


def as_array(x, lengths):
    numbers = lengths.numpy()
    return x * torch.tensor((numbers * 2 + 1).tolist())[:, None, None]


FREE, NUMBERED = (masked, packed, kinds, made_again, written_later, greatest), (read, changed_values, copied, as_array)


class OfLengths(torch.nn.Module):
    def __init__(self, run: Callable[..., object]) -> None:
        super().__init__()
        self.run = run
        self.layer = torch.nn.GRU(4, 5, batch_first=True)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> object:
        return self.run(x, lengths, self.layer) if self.run is packed else self.run(x, lengths)


def of_lengths(batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(batch * 100 + length)
    lengths = torch.randint(1, length + 1, (batch,), generator=generator)
    lengths[batch // 2] = length
    return torch.randn(batch, length, 4, generator=generator), lengths


@pytest.mark.one_in(4)
@pytest.mark.parametrize("run", [*FREE, *NUMBERED])
def test_values_in_a_list_are_their_tensor(run: Callable[..., object]) -> None:
    model, observer = OfLengths(run), InputObserver()
    with torch.no_grad(), observer(model):
        model(*of_lengths(2, 5))
        model(*of_lengths(3, 7))
    program = observer.export()
    if run in FREE:
        assert program.verify().verified
    with torch.no_grad():
        for sizes in ((2, 5), (3, 7), *(((4, 6), (1, 3), (6, 9)) if run in FREE else ())):
            call = of_lengths(*sizes)
            torch.testing.assert_close(program(*call), model(*call))


def test_what_code_in_c_reads_of_such_a_list_is_no_number() -> None:
    values = _Values(FakeRow())
    with pytest.raises(TypeError):
        operator.index(list.__getitem__(values, 0))
    assert values.decided() is values
    assert list(values) == [0, 1, 2]


class FakeRow:
    """Stands for a tensor of three values."""

    shape = (3,)

    def __iter__(self):
        return iter(torch.arange(3))
