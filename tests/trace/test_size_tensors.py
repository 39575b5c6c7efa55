"""Sizes that go through tensors and ``int()``, and branches on values: one graph for other sizes all the same."""

from __future__ import annotations

import builtins
import logging
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from onlooker import InputObserver, OnlookerError
from onlooker.trace.size_ints import ints_stay_sizes
from onlooker.trace.size_tensors import SizeTensors

HERE = sys.modules[__name__]


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def quotient(x: torch.Tensor) -> torch.Tensor:
    n = torch.div(x.size(1), 2, rounding_mode="trunc")
    return x[:, : 2 * (x.size(1) // 2)].reshape(x.size(0), n, 2)


def minus_one(x: torch.Tensor) -> torch.Tensor:
    n = torch.div(x.size(1), 2, rounding_mode="floor") - 1
    return x[:, : n + 1] * 2


def rest(x: torch.Tensor) -> torch.Tensor:
    missing: Any = torch.fmod(torch.tensor(x.size(1)), torch.tensor(4)).item()
    return torch.cat([x, x[:, :1].repeat(1, missing)], 1)


def whole_blocks(x: torch.Tensor) -> torch.Tensor:
    n = torch.as_tensor(x.shape[1]) // 2 * 2
    return x[:, :n].reshape(x.shape[0], -1, 2)


def reflected(x: torch.Tensor) -> torch.Tensor:
    n = 1 + torch.tensor(x.shape[1]).to(torch.int32)
    return torch.cat([x, x.new_zeros(x.shape[0], 1)], dim=1).reshape(-1, n)


class Sized(torch.nn.Module):
    """Cuts by a number that it computes of its sizes in some way."""

    def __init__(self, cut: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.cut = cut

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.cut(x)


def exported(model: torch.nn.Module, *calls: Any) -> Any:
    observer = InputObserver()
    with observer(model), torch.no_grad():
        for call in calls:
            model(*call)
    return observer.export()


@pytest.mark.parametrize("cut", [quotient, minus_one, rest, whole_blocks, reflected], ids=lambda cut: cut.__name__)
def test_a_size_goes_through_a_tensor(cut: Callable[[torch.Tensor], torch.Tensor]) -> None:
    model = Sized(cut)
    program = exported(model, (rand(2, 7),), (rand(3, 9),))
    for shape in ((2, 11), (4, 19), (1, 23)):
        assert torch.equal(program(rand(*shape)), model(rand(*shape))), shape


@pytest.mark.parametrize("cut", [quotient, minus_one, rest, whole_blocks, reflected], ids=lambda cut: cut.__name__)
def test_no_number_of_a_trace_is_unknown(cut: Callable[[torch.Tensor], torch.Tensor]) -> None:
    auto = {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}

    class Traced(Sized):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with SizeTensors():
                return super().forward(x)

    program = torch.export.export(Traced(cut), (rand(3, 7),), dynamic_shapes={"x": auto}, strict=False)
    assert all(str(symbol).startswith("s") for symbol in program.range_constraints)


@pytest.mark.parametrize("value", [-7, 7, 8])
def test_what_is_below_zero_is_left_to_torch(value: int) -> None:
    with SizeTensors():
        assert torch.fmod(torch.tensor(value), 4).item() == torch.tensor(value).fmod(4).item()
        assert torch.div(value, 4, rounding_mode="trunc").item() == int(value / 4)


class Halved(torch.nn.Module):
    """Makes ints of sizes, of floats and of texts, and asks what an int is."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = int(x.shape[1] / 2)
        place = int(x.shape[1] + int("1")) * int(2.5)
        assert isinstance(n, int)
        return x[:, : n + 1] * place


def test_an_int_of_a_size() -> None:
    program = exported(Halved(), (rand(2, 8),), (rand(3, 6),))
    for shape in ((2, 9), (4, 20), (1, 13)):
        assert torch.equal(program(rand(*shape)), Halved()(rand(*shape))), shape
    assert any(
        note.startswith("int(), len() and range() of a size are read as sizes") for note in program.graphs[0].notes
    )


def first_size(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return torch.arange(4).expand(len(x), 4) + x + ids[: len(ids)].sum()


def greatest_id(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return torch.zeros(int(ids.max()) + 1, x.shape[1]).index_add(0, ids, x)


def mask_of_lengths(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return (torch.arange(int(ids.max()))[None] < ids[:, None]).sum(1, keepdim=True) * x


def float_made_a_size(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return x * torch.ones(int(ids.sum() / 2.0)).sum()


@pytest.mark.parametrize(
    "form", [first_size, greatest_id, mask_of_lengths, float_made_a_size], ids=lambda f: f.__name__
)
def test_sizes_made_from_values_and_from_len(form: Callable[..., torch.Tensor]) -> None:
    """One graph serves every value, not one graph a value."""

    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
            return form(x, ids)

    def call(*ids: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.rand(len(ids), 4), torch.tensor(ids)

    program = exported(Net(), call(0, 2), call(3, 1, 4))
    assert len(program.graphs) == 1 or form is float_made_a_size  # such graphs are not compared
    assert program.verify().verified
    for values in (call(5, 1, 0, 2), call(6), call(1, 1, 1, 9, 2)):
        assert torch.equal(program(*values), form(*values)), values


def test_a_number_of_a_value_is_the_same_number_in_two_graphs_only_for_the_same_value() -> None:
    """Graphs are compared by the value that was read: ``item()`` of another value is another number."""

    class Other(torch.nn.Module):
        def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
            greatest = ids.max() if x.shape[0] > 6 else ids.sum()
            return x * torch.ones(int(greatest)).sum()

    def call(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.linspace(0, 1, 4 * rows).reshape(rows, 4), torch.arange(rows) + 1

    program = exported(Other(), call(3), call(4))
    for rows in (2, 5, 6, 7, 9):
        assert torch.equal(program(*call(rows)), Other()(*call(rows))), rows


class Blocks(torch.nn.Module):
    """Goes over blocks of eight, and over what is no size."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        starts = range(0, x.shape[1], 8)
        sums = [x[:, start : start + 8].sum(1) for start in starts]
        assert isinstance(range(3), range)
        return torch.stack(sums, 1) * sum(range(2, 4))


def test_a_range_over_a_size_is_free_within_its_steps() -> None:
    program = exported(Blocks(), (rand(2, 5),), (rand(3, 6),))
    for shape in ((2, 7), (4, 8), (1, 3)):
        torch.testing.assert_close(program(rand(*shape)), Blocks()(rand(*shape)))


def test_int_is_put_back() -> None:
    def raises() -> None:
        with ints_stay_sizes(Halved()):
            assert vars(HERE)["int"] is not builtins.int
            assert (int("7"), int(2.9), int("ff", 16), isinstance(3, int)) == (7, 2, 255, True)
            raise KeyError

    before = dict(vars(HERE))
    with pytest.raises(KeyError):
        raises()
    assert dict(vars(HERE)) == before
    assert int is builtins.int


class Masked(torch.nn.Module):
    """Takes another path where a mask has a zero."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if (mask == 0).any().item():
            return x * mask
        return x + 1.0


def test_a_branch_on_values_is_checked_at_run_time(caplog: pytest.LogCaptureFixture) -> None:
    model, ones = Masked(), torch.ones
    with caplog.at_level(logging.WARNING):
        program = exported(model, (rand(2, 7), ones(2, 7)), (rand(3, 5), ones(3, 5)))
    assert not [record for record in caplog.records if "propagate_real_tensors" in record.getMessage()]
    assert any("branch" in note for note in program.graphs[0].notes)
    for shape in ((4, 9), (1, 11)):
        assert torch.equal(program(rand(*shape), ones(*shape)), rand(*shape) + 1.0)
    mask = ones(4, 9)
    mask[0, 0] = 0.0
    with pytest.raises(OnlookerError, match="No graph of this program takes the call"):
        program(rand(4, 9), mask)


def test_both_sides_of_a_branch_on_values_get_a_graph() -> None:
    model, mask = Masked(), torch.ones(3, 5)
    mask[1, 2] = 0.0
    program = exported(model, (rand(2, 7), torch.ones(2, 7)), (rand(3, 5), mask))
    other = torch.ones(4, 9)
    other[3, 0] = 0.0
    for x, given in ((rand(4, 9), other), (rand(4, 9), torch.ones(4, 9))):
        assert torch.equal(program(x, given), model(x, given))
