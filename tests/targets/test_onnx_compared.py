"""Distances and places in sorted rows in ONNX Runtime, for sizes that the export did not have."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import onnxruntime
import pytest
import torch

from onlooker.targets.onnx.operators.table import translations
from onlooker.targets.taken_apart import take_apart

DYNAMIC = torch.export.Dim.DYNAMIC


class Function(torch.nn.Module):
    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return self.function(first, second)


def agrees(function: Callable[..., torch.Tensor], *calls: tuple[torch.Tensor, torch.Tensor]) -> None:
    """The first call is exported, and all are asked; the axis before the last of both changes."""
    axis = [max(value.dim() - 2, 0) for value in calls[0]]
    shapes = tuple({number: DYNAMIC} for number in axis)
    program = take_apart(torch.export.export(Function(function), calls[0], dynamic_shapes=shapes))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the converter calls what torch deprecates
        made = torch.onnx.export(program, dynamo=True, verbose=False, custom_translation_table=translations())
    assert made is not None
    session = onnxruntime.InferenceSession(made.model_proto.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    for call in calls:
        feed: dict[str, Any] = {name: value.numpy() for name, value in zip(names, call, strict=True)}
        (got,) = session.run(None, feed)
        torch.testing.assert_close(torch.from_numpy(got), function(*call), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("p", [0.0, 2.0, 3.0, math.inf])
@pytest.mark.one_in(4)
def test_distances_of_every_norm(p: float) -> None:
    calls = [(torch.randn(2, n, 5), torch.randn(2, m, 5)) for n, m in ((4, 3), (7, 30), (1, 2))]
    same = torch.ones(2, 3, 5)
    agrees(lambda x, y: torch.cdist(x, y, p=p), *calls, (same, same.clone()))


@pytest.mark.parametrize("right", [False, True])
def test_places_in_one_sorted_row(right: bool) -> None:
    calls = [(torch.arange(n), torch.randint(-1, n + 1, (m,))) for n, m in ((4, 6), (9, 3), (2, 20))]
    agrees(lambda rows, values: torch.searchsorted(rows, values, right=right), *calls)


@pytest.mark.slow
def test_places_in_a_sorted_row_of_each() -> None:
    calls = [(torch.randn(n, 4).sort(-1)[0], torch.randn(n, 7)) for n in (3, 5, 1)]
    agrees(lambda rows, values: torch.searchsorted(rows, values, out_int32=True), *calls)


def test_places_in_rows_that_are_sorted_by_indices() -> None:
    def places(rows: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return torch.searchsorted(rows, values, sorter=rows.argsort(-1))

    agrees(places, *[(torch.randperm(n), torch.arange(n)) for n in (5, 8, 3)])
