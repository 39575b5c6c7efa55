"""Inputs that were whole in every call may be of size 1 where the model only broadcasts them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from onlooker import InputObserver, Program, RejectedCallError
from onlooker.proofs.broadcasts import Broadcasts

Function = Callable[..., Any]
Shape = tuple[int, ...]

WHOLE = [((3, 4, 6), (3, 4, 6)), ((5, 7, 6), (5, 7, 6)), ((2, 9, 6), (2, 9, 6))]


def exported(function: Function, calls: list[tuple[Shape, ...]] = WHOLE) -> tuple[Program, torch.nn.Module]:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor, other: torch.Tensor) -> Any:
            return function(x, other)

    model, observer = Model(), InputObserver()
    with observer(model), torch.no_grad():
        for shapes in calls:
            model(*(torch.randn(shape) for shape in shapes))
    return observer.export(to="torch"), model


def assert_same(program: Program, model: torch.nn.Module, *shapes: Shape) -> None:
    inputs = [torch.randn(shape) for shape in shapes]
    expected = model(*inputs)
    got = program(*inputs)
    assert got.shape == expected.shape
    torch.testing.assert_close(got, expected)


def refuses(program: Program, *shapes: Shape) -> bool:
    try:
        program(*(torch.randn(shape) for shape in shapes))
    except RejectedCallError:
        return True
    return False


def product(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return x * other


def masked(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return (x + (1 - other) * -100).softmax(1)


def expanded(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return other.expand(x.shape[0], x.shape[1], -1).sum(1, keepdim=True) * x


def moved(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return (x.transpose(0, 1).unsqueeze(0) * other.permute(1, 0, 2)[None]).sum(0)


def chosen(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return torch.where(other > 0, x, x.new_zeros(()))


@pytest.mark.one_in(6)
@pytest.mark.parametrize("function", [product, masked, expanded, moved, chosen])
@pytest.mark.parametrize("other", [(1, 5, 6), (4, 1, 6), (1, 1, 6)])
def test_what_is_only_broadcast_may_be_of_size_1(function: Function, other: Shape) -> None:
    program, model = exported(function)
    assert len(program.graphs) == 1
    assert_same(program, model, (4, 5, 6), other)
    assert program.verify().verified


def test_each_input_may_be_of_size_1_along_another_axis() -> None:
    program, model = exported(product)
    for shapes in (((10, 1, 6), (1, 10, 6)), ((1, 4, 6), (3, 1, 6)), ((0, 1, 6), (1, 10, 6)), ((4, 5, 6), (4, 5, 6))):
        assert_same(program, model, *shapes)
    assert refuses(program, (4, 5, 6), (2, 5, 6))


def test_a_small_input_has_its_own_result_where_another_one_is_as_small() -> None:
    program, model = exported(product)
    assert_same(program, model, (1, 5, 6), (1, 5, 6))


# -- models to which the size says something

READ = {
    "a mean": lambda x, other: x * other.mean(0, keepdim=True).mean(1, keepdim=True),
    "a sum of rows": lambda x, other: x + other.cumsum(0).cumsum(1),
    "the shape": lambda x, other: x * other * (other.shape[0] + other.shape[1]),
    "the size of a product": lambda x, other: x * other * (other * 2).shape[0] * (other * 2).shape[1],
    "the length": lambda x, other: (
        x * other.transpose(0, 1) * len(other) if len(x) < 0 else x * other * len(other) * other.size(1)
    ),
    "the number of elements": lambda x, other: x * other / other.numel(),
    "whether shapes are equal": lambda x, other: x * other if other.is_same_size(x) else x * other + 1,
    "a branch": lambda x, other: x * other if min(other.shape) > 1 else x * other + 1,
    "the rows themselves": lambda x, other: torch.stack([*other.unbind(0)]).sum((0, 1)) * x,
    "a result": lambda x, other: (x * other, other * 2),
    "the input that is returned": lambda x, other: (x.sum(), other),
    "strides": lambda x, other: x * other * other.stride(0) * other.stride(1),
    "one stride": lambda x, other: x * other * other.stride(0),
    "a stride of the last rows": lambda x, other: (x * other)[:, :1] * other.stride(1),
    "a function of torch that reads shapes": lambda x, other: torch.nn.functional.gaussian_nll_loss(
        x, x + 1, other.abs(), reduction="none"
    ),
    "a squeezed axis": lambda x, other: x * other.squeeze(0).squeeze(1).mean(),
}


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", READ)
def test_what_the_model_looks_at_is_refused(name: str) -> None:
    program, _ = exported(READ[name])
    assert_refused_or_same(program, READ[name])
    for graph in program.graphs:
        dims = graph.plan.leaf("other").broadcast
        assert not {0, 1} & set(dims)


def assert_refused_or_same(program: Program, function: Function) -> None:
    for shapes in (((4, 5, 6), (1, 5, 6)), ((4, 5, 6), (4, 1, 6)), ((4, 5, 6), (1, 1, 6))):
        inputs = [torch.randn(shape) for shape in shapes]
        try:
            got = program(*inputs)
        except RejectedCallError:
            continue
        expected = function(*inputs)
        for one, two in zip(
            torch.utils._pytree.tree_leaves(got), torch.utils._pytree.tree_leaves(expected), strict=True
        ):
            torch.testing.assert_close(one, two)


def test_an_input_that_is_written_stays_whole() -> None:
    def added(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        other += 1
        return x * other

    program, _ = exported(added)
    assert refuses(program, (4, 5, 6), (1, 5, 6))


def test_only_the_axes_that_are_broadcast_may_be_of_size_1() -> None:
    def normed(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return x * other.softmax(1)

    program, model = exported(normed)
    assert_same(program, model, (4, 5, 6), (1, 5, 6))
    assert refuses(program, (4, 5, 6), (4, 1, 6))


def test_one_of_two_that_meet_first_stays_whole() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor, one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
            return x * (one + two).softmax(0)

    model, observer = Model(), InputObserver()
    with observer(model), torch.no_grad():
        for rows in (3, 4, 7):
            model(*(torch.randn(rows, 6) for _ in range(3)))
    program = observer.export(to="torch")
    for shapes in (
        ((4, 6), (1, 6), (1, 6)),
        ((4, 6), (1, 6), (4, 6)),
        ((4, 6), (4, 6), (1, 6)),
        ((1, 6), (4, 6), (4, 6)),
    ):
        inputs = [torch.randn(shape) for shape in shapes]
        try:
            got = program(*inputs)
        except RejectedCallError:
            continue
        torch.testing.assert_close(got, model(*inputs))
    assert refuses(program, (4, 6), (1, 6), (1, 6))


def test_positions_of_one_row_are_those_of_all_rows() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = torch.nn.Embedding(20, 8), torch.nn.Embedding(32, 8)

        def forward(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            return (self.words(ids) + self.places(positions)).tanh().mean(1)

    model, observer = Model(), InputObserver()
    with observer(model), torch.no_grad():
        for rows, words in ((2, 5), (3, 7), (4, 6)):
            model(torch.randint(20, (rows, words)), torch.arange(words).expand(rows, words).clone())
    program = observer.export(to="torch")
    ids, positions = torch.randint(20, (5, 9)), torch.arange(9)[None]
    torch.testing.assert_close(program(ids, positions), model(ids, positions))
    assert "may be 1" in program.graphs[0].plan.explain("positions", 0)


def test_it_is_kept_in_a_folder_and_said_in_the_report(tmp_path: Any) -> None:
    from onlooker import load

    program, model = exported(product)
    program.save(tmp_path / "program")
    assert_same(load(tmp_path / "program"), model, (4, 5, 6), (1, 5, 6))
    assert "float32[batch or 1, " in str(program.report)


def test_without_experiments_and_with_observed_ranges_sizes_are_those_of_calls() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
            return x * other

    observer = InputObserver()
    model = Model()
    with observer(model), torch.no_grad():
        for rows in (3, 4):
            model(torch.randn(rows, 6), torch.randn(rows, 6))
    assert refuses(observer.export(to="torch", ranges="observed"), (4, 6), (1, 6))
    assert refuses(observer.export(to="torch", probe=False), (4, 6), (1, 6))


def test_a_graph_looks_at_what_no_rule_knows() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
            return x[:, :4] * other[:, :4] + (other[:, 1] * 0)[:, None]

    program = torch.export.export(Model(), (torch.randn(3, 5), torch.randn(3, 5)))
    broadcasts = Broadcasts(program)
    assert broadcasts.is_all_of({1: [0]})
    assert not broadcasts.is_all_of({1: [1]})
    assert not broadcasts.is_all_of({0: [0], 1: [0]})
