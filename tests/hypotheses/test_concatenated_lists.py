"""Lists that the model only concatenates go through one graph, however many tensors they hold."""

from __future__ import annotations

from typing import Any

import pytest
import torch

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
