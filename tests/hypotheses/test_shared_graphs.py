"""Calls of several kinds in one graph, and results that are more for more items."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from onlooker import InputObserver, RejectedCallError


class EachOfThem(torch.nn.Module):
    """A result for each image, which hangs on no other image, as detectors give."""

    def __init__(self, form: Callable[[Any], Any]) -> None:
        super().__init__()
        self.form = form

    def forward(self, images: list[torch.Tensor]) -> Any:
        return self.form(self.of_one(image) for image in images)

    def of_one(self, image: torch.Tensor) -> Any:
        return {"means": image.mean((1, 2)), "sum": image.sum()}


class Sums(EachOfThem):
    def of_one(self, image: torch.Tensor) -> Any:
        return image.sum()


@pytest.mark.parametrize("model", [EachOfThem(list), EachOfThem(tuple), Sums(list), Sums(tuple)])
@pytest.mark.one_in(2)
def test_a_result_for_each_item_is_as_long_as_the_list(model: EachOfThem) -> None:
    observer = InputObserver()
    with observer(model), torch.no_grad():
        for count in (2, 1):
            model([torch.rand(3, 8, 9) for _ in range(count)])
    program = observer.export()
    for count in (1, 2):
        images = [torch.rand(3, 7, 11) for _ in range(count)]
        torch.testing.assert_close(program(images), model(images))
    assert program.verify(trials=30).verified


class WithoutSizes(torch.nn.Module):
    """Doubles long rows of calls that say no sizes."""

    def forward(self, x: Any, sizes: Any = None) -> Any:
        return x * 2 if sizes is None and x.shape[1] > 20 else x * 1


@pytest.mark.parametrize("sizes", [[2, 3], {"a": [1, 2], "b": 3}])
def test_no_ints_stand_for_a_list_of_sizes_that_a_call_leaves_out(sizes: Any) -> None:
    model, observer = WithoutSizes().eval(), InputObserver()
    with observer(model), torch.no_grad():
        for rows, columns, more in ((5, 8, {"sizes": sizes}), (2, 3, {}), (4, 9, {"sizes": sizes})):
            model(torch.rand(rows, columns), **more)
    program = observer.export()
    assert program.verify().verified
    assert len(program.graphs) == 2
    x = torch.rand(3, 48)
    torch.testing.assert_close(program(x, sizes=sizes), x)
    assert not program.check([{"x": x}]).holds


def cut(x: torch.Tensor) -> torch.Tensor:
    """The same as its argument up to 16 columns."""
    return x * (torch.arange(x.shape[1]) < 16)


class CountsItems(torch.nn.Module):
    """Something else beyond 16 columns for one item, or for none."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def of_items(self, x: torch.Tensor, items: Any) -> torch.Tensor:
        return cut(x) if len(items) == self.count else x * 1.0


class CountsRest(CountsItems):
    def forward(self, x: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        return self.of_items(x, rest)


class CountsList(CountsItems):
    def forward(self, x: torch.Tensor, items: list[torch.Tensor]) -> torch.Tensor:
        return self.of_items(x, items)


class CountsDict(CountsItems):
    def forward(self, x: torch.Tensor, items: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.of_items(x, items)


@pytest.mark.parametrize(
    ("model", "counts"),
    [(CountsRest(0), (0, 1)), (CountsRest(1), (0, 1, 2)), (CountsList(1), (1, 2)), (CountsDict(1), (1, 2))],
)
@pytest.mark.one_in(2)
def test_a_call_with_fewer_items_is_never_served_by_a_graph_of_more(model: CountsItems, counts: Any) -> None:
    def call(function: Any, count: int, columns: int) -> Any:
        x, items = torch.ones(3, columns), [torch.ones(3, columns)] * count
        if isinstance(model, CountsRest):
            return function(x, *items)
        return function(x, items if isinstance(model, CountsList) else dict(zip("abc", items, strict=False)))

    observer = InputObserver()
    with observer(model), torch.no_grad():
        for count in counts:
            for columns in (5, 9):
                call(model, count, columns)
    program = observer.export()
    assert program.verify().verified
    for count in counts:
        for columns in (5, 12, 40):
            assert torch.equal(call(program, count, columns), call(model, count, columns))
    with pytest.raises(RejectedCallError):
        call(program, max(counts) + 1, 12)
