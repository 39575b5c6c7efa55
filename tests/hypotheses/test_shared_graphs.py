"""Calls of several kinds in one graph, and results that are more for more items."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from onlooker import InputObserver


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
