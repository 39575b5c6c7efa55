"""Sizes of 0 that no call had: served where the model takes them and the graph gives the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from onlooker import InputObserver, Program, RejectedCallError


def program_of(function: Callable[..., torch.Tensor], *shapes: tuple[int, ...]) -> Program:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return function(x)

    model, observer = Model(), InputObserver()
    with observer(model), torch.no_grad():
        for shape in shapes:
            model(torch.randn(*shape))
    return observer.export()


def flipped(x: torch.Tensor) -> torch.Tensor:
    return x.flip(0, 1)


def by_hand(x: torch.Tensor) -> torch.Tensor:
    if x.shape[0] == 0:
        return x.new_ones(7, x.shape[1])
    return x * 2


def of_rows(x: torch.Tensor) -> torch.Tensor:
    return x.view(x.shape[0], 2, -1).sum(1)  # torch does not know -1 where there are no elements


def guided(x: torch.Tensor) -> torch.Tensor:
    with_text, without = torch.cat([x, x + 1]).chunk(2)
    return without + 7.5 * (with_text - without)


def halves(x: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2)
    return first * second


@pytest.mark.parametrize(("function", "batches"), [(guided, (2, 3, 1)), (halves, (2, 6, 4))])
def test_parts_of_a_multiple_are_as_many_at_every_size(
    function: Callable[..., torch.Tensor], batches: tuple[int, ...]
) -> None:
    """torch asks how many parts of the rounded size there are, ``(3 * n - 1) // n == 2``: 0 cannot be divided by."""
    program = program_of(function, *((batch, 4) for batch in batches))
    assert program.verify().verified
    assert len(program.graphs) == 1
    for batch in (0, 2, 8):
        x = torch.randn(batch, 4)
        torch.testing.assert_close(program(x), function(x))
    assert "refused" not in str(program.report)


@pytest.mark.parametrize("empty", [(0, 5), (3, 0), (0, 0)])
def test_an_empty_tensor_is_served_where_the_graph_gives_what_the_model_gives(empty: tuple[int, int]) -> None:
    program = program_of(flipped, (2, 4), (3, 6))
    assert program.verify().verified
    assert program(torch.randn(*empty)).shape == empty


def test_a_model_that_does_something_else_with_an_empty_batch_is_not_served_by_the_other_graph() -> None:
    program = program_of(by_hand, (2, 4), (3, 6))
    assert program.verify().verified
    with pytest.raises(RejectedCallError):
        program(torch.randn(0, 5))
    assert program(torch.randn(1, 5)).shape == (1, 5)


def test_a_size_that_the_model_refuses_begins_at_one() -> None:
    program = program_of(of_rows, (2, 4), (3, 8))
    assert program.verify().verified
    assert {symbol.name: symbol.low for symbol in program.plans[0].symbols} == {"batch": 1, "x_dim_1": 0}


def test_a_file_of_another_runtime_begins_at_one() -> None:
    program = program_of(flipped, (2, 4), (3, 6)).to("onnx")
    assert program.verify().verified
    assert [symbol.low for symbol in program.plans[0].symbols] == [1, 1]
    with pytest.raises(RejectedCallError, match="batch, 1 and more, the call has 0"):
        program(torch.randn(0, 5))


#: what a model does with an int, and whether it is the same at 0
INTS: dict[str, tuple[Callable[[torch.Tensor, int], torch.Tensor], bool]] = {
    "a step": (lambda x, n: x * torch.sin(torch.tensor([n]) * 2.0 ** torch.arange(4)), True),
    "a row": (lambda x, n: x + x[n], True),
    "the first ones": (lambda x, n: x[:, :n].sum(1), True),
    "the last ones": (lambda x, n: x[:, -n:].sum(1), False),
    "all but the last ones": (lambda x, n: x[:, :-n].sum(1), False),
    "a flag": (lambda x, n: x * 2 if n else x, False),
    "a default": (lambda x, n: x * (n or 7), False),
}


@pytest.mark.parametrize("name", INTS)
@pytest.mark.one_in(2)
def test_an_int_of_zero_is_served_where_the_graph_gives_what_the_model_gives(name: str) -> None:
    function, is_served = INTS[name]

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor, n: int) -> torch.Tensor:
            return function(x, n)

    model, observer = Model(), InputObserver()
    with observer(model), torch.no_grad():
        model(torch.randn(5, 4), 2)
        model(torch.randn(6, 4), 3)
    program = observer.export()
    assert program.verify().verified
    x = torch.randn(4, 4)
    torch.testing.assert_close(program(x, 1), model(x, 1))
    if is_served:
        torch.testing.assert_close(program(x, 0), model(x, 0))
    else:
        with pytest.raises(RejectedCallError):
            program(x, 0)


class Bags(torch.nn.Module):
    """Rows of ids between bounds, beside a row of numbers each: for one bound and ids torch ends the process."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = torch.nn.EmbeddingBag(11, 4, mode="max", include_last_offset=True, padding_idx=0)

    def forward(self, numbers: torch.Tensor, ids: torch.Tensor, bounds: torch.Tensor) -> torch.Tensor:
        return self.bag(ids, bounds) + numbers


def test_packed_rows_with_bounds_are_never_none() -> None:
    def call(*lengths: int) -> tuple[torch.Tensor, ...]:
        bounds = torch.tensor([0, *lengths]).cumsum(0)
        return torch.randn(len(lengths), 4), torch.arange(int(bounds[-1])) % 10 + 1, bounds

    model, observer = Bags().eval(), InputObserver()
    with observer(model), torch.no_grad():
        for lengths in ((2, 3), (1, 4, 2), (3, 1, 1, 2)):
            model(*call(*lengths))
    program = observer.export()
    assert program.verify().verified
    for lengths in ((1,), (5, 2), (1, 2, 3, 4, 5)):
        asked = call(*lengths)
        torch.testing.assert_close(program(*asked), model(*asked))


def test_an_operator_that_would_end_the_process_is_not_run() -> None:
    """The kernel of the largest rows of bags reads beyond its memory where there is no bag."""
    torch.manual_seed(0)
    model, observer = torch.nn.EmbeddingBag(50, 4, mode="max"), InputObserver()
    with torch.no_grad(), observer(model):
        for count, offsets in ((7, [0, 3]), (9, [0, 2, 5])):
            model(torch.randint(0, 50, (count,)), torch.tensor(offsets))
    program = observer.export()
    assert program.verify().verified
    ids, offsets = torch.randint(0, 50, (11,)), torch.tensor([0, 4, 4, 9])
    torch.testing.assert_close(program(ids, offsets), model(ids, offsets))


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_no_bag_is_tried_where_a_row_of_padding_is_left_out(mode: str) -> None:
    """The kernels that leave out a row of padding read beyond their memory, too; here no call changes the offsets."""
    observer = InputObserver()
    model = torch.nn.EmbeddingBag(20, 4, mode=mode, padding_idx=0)
    with observer(model), torch.no_grad():
        for n in (5, 9, 12):
            model(torch.randint(1, 9, (n,)), torch.tensor([0, 2, 4]))
    program = observer.export()
    assert program.verify().verified
    ids, offsets = torch.randint(0, 9, (11,)), torch.tensor([0, 4, 4, 9])
    torch.testing.assert_close(program(ids, offsets), model(ids, offsets))
