"""Lists that the model only concatenates go through one graph, however many tensors they hold."""

from __future__ import annotations

import contextlib
import copy
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.functional import pad

import onlooker
from onlooker import InputObserver
from onlooker.core.call import Join
from onlooker.core.path import Name, Path


class Joined(torch.nn.Module):
    """Reads a list of images as their concatenation; every row of the text has three of its rows."""

    def forward(self, text: torch.Tensor, images: list[torch.Tensor]) -> torch.Tensor:
        flat = torch.cat(images, dim=0)
        return text + flat.reshape(text.shape[0], 3, -1).sum(dim=1)


class Counted(torch.nn.Module):
    """Reads a list item by item: another number of items is another result."""

    def forward(self, xs: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack([x.mean() for x in xs])


class Wide(torch.nn.Module):
    def forward(self, xs: list[torch.Tensor]) -> torch.Tensor:
        return torch.cat(xs, dim=1) * 2


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def images(count: int) -> list[torch.Tensor]:
    return [rand(3, 4 + 0 * i) + i for i in range(count)]


def watched(model: torch.nn.Module, *calls: tuple[Any, ...]) -> InputObserver:
    observer = InputObserver()
    with observer(model):
        for args in calls:
            model(*args)
    return observer


@pytest.mark.parametrize(
    "calls",
    [
        [(rand(1, 4), images(1))],
        [(rand(1, 4), images(1)), (rand(3, 4), images(3))],
        [(rand(2, 4), images(2))],
    ],
    ids=["one image", "one and three", "two images"],
)
def test_any_number_of_images_goes_through_one_graph(calls: list[tuple[Any, ...]]) -> None:
    model = Joined()
    program = watched(model, *calls).export()
    assert len(program.graphs) == 1
    assert program.verify().verified, program.report
    for count in (1, 2, 4, 7):
        args = (rand(count, 4), images(count))
        torch.testing.assert_close(program(*args), model(*args))


def test_the_other_dimension_is_found_too() -> None:
    model = Wide()
    program = watched(model, ([rand(2, 3), rand(2, 5)],)).export()
    assert program._program.contents.joins == (Join(Path((Name("xs"),)), 1),)
    for sizes in ((3,), (1, 2, 7), (4, 4, 4, 4)):
        xs = [rand(2, n) for n in sizes]
        torch.testing.assert_close(program(xs), model(xs))


def test_a_list_that_is_read_item_by_item_is_a_graph_per_length() -> None:
    model = Counted()
    program = watched(model, ([rand(2, 3)] * 2,), ([rand(2, 3)] * 3,)).export()
    assert program._program.contents.joins == ()
    assert len(program.graphs) == 2
    for count in (2, 3):
        xs = [rand(2, 3) + i for i in range(count)]
        torch.testing.assert_close(program(xs), model(xs))
    with pytest.raises(ValueError, match="No graph of this program takes the call"):
        program([rand(2, 3)] * 4)


def test_without_probes_no_list_is_joined() -> None:
    assert watched(Wide(), ([rand(2, 3), rand(2, 5)],)).export(probe=False)._program.contents.joins == ()


class Returned(torch.nn.Module):
    """Returns the list beside the result, as some models do with the features of images."""

    def forward(self, xs: list[torch.Tensor]) -> dict[str, Any]:
        return {"sum": torch.cat(xs).sum(dim=0), "given": xs}


@pytest.mark.parametrize("watched_count", [1, 2])
def test_a_list_that_the_model_returns_comes_back_in_its_parts(watched_count: int, tmp_path: Any) -> None:
    model = Returned()
    program = watched(model, ([rand(4, 3)] * watched_count,)).export()
    assert program.verify().verified, program.report
    program.save(tmp_path / "program")
    loaded = onlooker.load(tmp_path / "program")
    for sizes in ((4,), (2, 3), (1, 2, 4)):
        xs = [rand(n, 3) for n in sizes]
        for one in (program, loaded):
            torch.testing.assert_close(one(xs), model(xs))


class Reversed(torch.nn.Module):
    """Returns as many tensors as it gets, though not the concatenated ones."""

    def forward(self, xs: list[torch.Tensor]) -> list[torch.Tensor]:
        return [x.cumsum(dim=0) for x in xs]


def test_a_list_that_is_computed_item_by_item_is_not_joined() -> None:
    model = Reversed()
    program = watched(model, ([rand(4, 3), rand(2, 3) + 1],)).export()
    assert program._program.contents.joins == ()
    with pytest.raises(ValueError, match="No graph of this program takes the call"):
        program([rand(4, 3)] * 3)


class WritesBeside(torch.nn.Module):
    """Writes to a tensor, and gives a list back that may hold it."""

    def forward(self, x: torch.Tensor, parts: list[torch.Tensor]) -> Any:
        out = x + 1
        x.mul_(2)
        return out + x, parts


def test_a_list_with_a_tensor_that_the_call_writes_is_refused() -> None:
    model, observer = WritesBeside(), InputObserver()
    with observer(model), torch.no_grad():
        for count in (2, 3):
            model(rand(count, 4), [rand(count, 4) for _ in range(count)])
    program = observer.export()
    assert program.verify().verified
    x, other = rand(5, 4), rand(5, 4)
    for parts in ([other, other], [other], [other, rand(3, 4), rand(5, 4)]):
        torch.testing.assert_close(program(x.clone(), parts), model(x.clone(), parts))
    for parts in ([x, other], [other, x[1:]]):
        with pytest.raises(
            onlooker.RejectedCallError, match=r"the call writes to one, the call has parts\[\d\], which is x"
        ):
            program(x, parts)


class OfItems(torch.nn.Module):
    """Does what the function says with the list; it may return the list itself too."""

    def __init__(self, of: Callable[[Any], Any]) -> None:
        super().__init__()
        self.of = of

    def forward(self, xs: Any) -> Any:
        return self.of(xs)


def counted(xs: Any) -> torch.Tensor:
    count = 0
    for _ in xs:
        count += 1
    return torch.cat(xs) * (1 if count < 4 else 2)


def unpacked(xs: Any) -> torch.Tensor:
    _, *rest = xs
    return torch.cat(xs) * (1 if len(rest) < 3 else 2)


def by_next(xs: Any) -> torch.Tensor:
    items = iter(xs)
    fourth = [next(items, None) for _ in range(4)][-1]
    return torch.cat(xs) * (1 if fourth is None else 2)


def matched(xs: Any) -> torch.Tensor:
    match xs:
        case [_, _, _, _]:
            return torch.cat(xs) * 2
    return torch.cat(xs)


OF_ITEMS: dict[str, Callable[[Any], Any]] = {
    "slice": lambda xs: torch.cat([x[:10] for x in xs]),
    "pad": lambda xs: torch.cat([pad(x, (0, 0, 0, max(0, 2 - x.shape[0]))) for x in xs]),
    "largest": lambda xs: torch.cat([x / x.abs().max().clamp(min=5.0) for x in xs]),
    "zip": lambda xs: torch.cat([x * w for x, w in zip(xs, (1.0, 1.0, 1.0, 0.5), strict=False)]),
    "enumerate": lambda xs: torch.cat([x * (1 if i < 3 else 2) for i, x in enumerate(xs)]),
    "isinstance": lambda xs: torch.cat([x if isinstance(x, torch.Tensor) else torch.zeros(1, 4) for x in xs]),
    "returned": lambda xs: [x - x.clamp(max=5.0).amax().clamp(min=4.9) for x in xs],
    "nan": lambda xs: torch.cat([torch.where(x.isnan().any(), torch.zeros_like(x), x) for x in xs]),
    "map": lambda xs: torch.cat(list(map(torch.neg, xs))),
    "list": lambda xs: torch.cat(xs) * (1 if len(list(xs)) < 4 else 2),
    "listed": lambda xs: torch.cat(xs) * (1 if len([*xs]) < 4 else 2),
    "reversed": lambda xs: torch.cat(xs) * (1 if len(list(reversed(xs))) < 4 else 2),
    "added": lambda xs: torch.cat(xs) * (1 if len(operator.add([], xs)) < 4 else 2),
    "times": lambda xs: torch.cat(xs) * (1 if len(xs * 2) < 8 else 2),
    "tree": lambda xs: torch.cat(xs) * (1 if len(torch.utils._pytree.tree_leaves(xs)) < 4 else 2),
    "copy": lambda xs: torch.cat(xs) * (1 if len(copy.copy(xs)) < 4 else 2),
    "sizes of a function": lambda xs: torch.cat(xs) * (1 if len(torch.atleast_2d(xs)) < 4 else 2),
    "first": lambda xs: torch.cat(xs) * (1 if xs[0].shape[0] < 10 else 2),
    "counted": counted,
    "unpacked": unpacked,
    "next": by_next,
    "match": matched,
}


@pytest.mark.one_in(12)
@pytest.mark.parametrize("of", OF_ITEMS.values(), ids=OF_ITEMS)
def test_a_list_of_which_python_gets_an_item_is_not_joined(of: Callable[[Any], Any]) -> None:
    model = OfItems(of)
    calls = [[rand(n, 4) for n in sizes] for sizes in ((2, 3), (3, 2, 2))]
    program = watched(model, *((xs,) for xs in calls)).export()
    assert program._program.contents.joins == ()
    nines = [torch.full((2, 4), 9.0), torch.ones(2, 4)]
    for xs in (*calls, [rand(n, 4) for n in (1, 1, 1, 1)], [rand(12, 4), rand(12, 4)], nines):
        with contextlib.suppress(onlooker.RejectedCallError):
            torch.testing.assert_close(program(xs), model(xs))


def test_a_branch_that_no_call_took_may_count_no_list_that_is_joined() -> None:
    def of(xs: Any) -> torch.Tensor:
        y = torch.cat(xs)
        if (y > 0).any():
            y = y * len(xs)
        return y

    model = OfItems(of)
    calls = [[-rand(n, 4).abs() - 1 for n in sizes] for sizes in ((2, 3), (3, 2, 2))]
    program = watched(model, *((xs,) for xs in calls)).export()
    for xs in (*calls, [rand(n, 4).abs() for n in (2, 3)], [rand(n, 4).abs() for n in (1, 1, 1, 1)]):
        with contextlib.suppress(onlooker.RejectedCallError):
            torch.testing.assert_close(program(xs), model(xs))


WHOLE: dict[str, Callable[[Any], Any]] = {
    "concat": lambda xs: torch.concat(xs) * 2,
    "concatenate": lambda xs: torch.concatenate(xs, axis=0) * 2,
    "vstack": lambda xs: torch.vstack(xs).cumsum(0),
    "tensors": lambda xs: torch.cat(tensors=xs, dim=-2) * 2,
    "list or tensor": lambda xs: torch.cat(xs) * 2 if isinstance(xs, list | tuple) else xs * 2,
}


@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.parametrize("of", WHOLE.values(), ids=WHOLE)
@pytest.mark.one_in(2)
def test_a_list_that_goes_whole_into_a_function_that_joins_it_is_joined(
    of: Callable[[Any], Any], kind: Callable[[Any], Any]
) -> None:
    model = OfItems(of)
    program = watched(model, (kind([rand(2, 4), rand(3, 4)]),)).export()
    assert program._program.contents.joins == (Join(Path((Name("xs"),)), 0),)
    assert program.verify().verified, program.report
    for sizes in ((3,), (1, 2, 7), (4, 4, 4, 4)):
        xs = kind([rand(n, 4) for n in sizes])
        torch.testing.assert_close(program(xs), model(xs))


@pytest.mark.parametrize(
    "other", [None, "a", 1.0, torch.ones(2, 4, dtype=torch.float64), torch.ones(4), torch.ones(2, 5)]
)
@pytest.mark.one_in(2)
def test_a_list_that_is_joined_is_refused_where_an_item_cannot_be_joined(other: Any) -> None:
    model = OfItems(torch.cat)
    program = watched(model, ([rand(2, 4), rand(3, 4)],)).export()
    assert len(program._program.contents.joins) == 1
    for xs in ([rand(2, 4), other], [other, rand(2, 4)], [rand(2, 4), other, rand(3, 4)]):
        with pytest.raises(onlooker.RejectedCallError, match="No graph of this program takes the call"):
            program(xs)
        again = [rand(n, 4) for n, _ in enumerate(xs, 1)]  # what was refused is not remembered
        torch.testing.assert_close(program(again), model(again))


class OfFeatures(torch.nn.Module):
    """Joins features that are given in a dict, if there are some."""

    def forward(self, x: torch.Tensor, given: dict[str, list[torch.Tensor]]) -> torch.Tensor:
        return x.sum() + torch.cat(given["rows"]).sum(0) if given else x.sum() * torch.ones(4)


def test_a_call_without_the_dict_that_holds_a_joined_list_is_served() -> None:
    model, observer = OfFeatures(), InputObserver()
    with observer(model):
        model(torch.randn(2, 5), {"rows": [torch.randn(2, 4), torch.randn(3, 4)]})
        model(torch.randn(3, 6), {"rows": [torch.randn(4, 4)]})
        model(torch.randn(3, 7), {})
    program = observer.export()
    assert program.verify().verified
    x, rows = torch.randn(2, 8), [torch.randn(n, 4) for n in (1, 2, 3)]
    torch.testing.assert_close(program(x, {"rows": rows}), model(x, {"rows": rows}))
    torch.testing.assert_close(program(x, {}), model(x, {}))
