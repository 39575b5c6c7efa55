"""An argument that comes in two dtypes has a graph for each, which is traced and tried with values of its own dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from onlooker import InputObserver


class Image(torch.nn.Module):
    """Bytes are scaled, floats are not."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.float() / 255 if x.dtype == torch.uint8 else x * 1.0


class Widened(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.float() * 3).to(x.dtype)


class Scaled(torch.nn.Module):
    """A bound that is that of the dtype."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / x.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(x.dtype).eps)


class Filled(torch.nn.Module):
    """A mask of bools is filled by, a mask of numbers added."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = torch.ones(x.shape, dtype=torch.float32)
        return scores.masked_fill(~x, -2.0) if x.dtype == torch.bool else scores + x.float()


def values(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    drawn = torch.rand(shape, generator=torch.Generator().manual_seed(sum(shape)))
    if dtype.is_floating_point:
        return drawn.to(dtype)
    return drawn > 0.5 if dtype is torch.bool else (drawn * 250).to(dtype)


CASES = {
    "bytes": (Image, torch.float32, torch.uint8),
    "halves": (Widened, torch.float32, torch.float16),
    "doubles": (Scaled, torch.float64, torch.float16),
    "masks": (Filled, torch.bool, torch.float32),
    "integers": (Filled, torch.int64, torch.bool),
}


@pytest.mark.parametrize("larger", ["first", "second"])
@pytest.mark.parametrize(("build", "first", "second"), CASES.values(), ids=CASES)
@pytest.mark.one_in(4)
def test_each_dtype_has_a_graph_of_its_own(
    build: Callable[[], Any], first: torch.dtype, second: torch.dtype, larger: str
) -> None:
    model, observer = build().eval(), InputObserver()
    sizes = [(2, 5, 4), (3, 6, 4)], [(2, 9, 7), (5, 11, 8)]
    with observer(model), torch.no_grad():
        for dtype, shapes in zip((first, second), sizes if larger == "second" else sizes[::-1], strict=True):
            for shape in shapes:
                model(values(dtype, *shape))
    program = observer.export()
    assert program.verify().verified, program.report
    for dtype in (first, second):
        for shape in ((2, 7, 4), (4, 3, 6)):
            x = values(dtype, *shape)
            small = x * 1e-7 if dtype.is_floating_point else x
            for given in (x, small):
                torch.testing.assert_close(program(given), model(given))
