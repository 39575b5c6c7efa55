"""Operators on bools, short ints and halves, for which ONNX Runtime has no kernel or the converter another dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from onlooker import InputObserver

onnxruntime = pytest.importorskip("onnxruntime")
Run = Callable[[torch.Tensor, torch.Tensor], Any]

RUNS: dict[str, tuple[Run, list[torch.dtype]]] = {
    "where": (lambda x, chosen: torch.where(chosen, x, x.flip(1)), [torch.bool, torch.int16]),
    "masked_fill": (lambda x, chosen: x.masked_fill(chosen, 1), [torch.bool, torch.int16]),
    "sort": (lambda x, _: torch.sort(x, 1).values, [torch.bool, torch.int8]),
    "clamp": (lambda x, _: x.clamp(min=x.flip(1)), [torch.bool, torch.int16]),
    "sign": (lambda x, _: x.sign(), [torch.bool, torch.uint8]),
    "tril": (lambda x, _: x.tril(), [torch.uint8, torch.int16]),
    "pad": (lambda x, _: torch.nn.functional.pad(x, (1, 2)), [torch.int16, torch.uint8]),
    "maximum": (lambda x, _: (torch.maximum(x, x.flip(1)), x.amin(1), x.argmax(1)), [torch.int16, torch.int8]),
    "overflow": (lambda x, _: (x * 100 - x, -x, x @ x.T), [torch.uint8, torch.int8]),
    "round": (lambda x, _: (x.round(), x.relu(), x.diagonal()), [torch.int32, torch.uint8]),
    "absolute": (lambda x, _: (x.abs(), x.sum(1), x.amax(1), x.prod(1)), [torch.float16]),
}
CASES = [pytest.param(run, dtype, id=f"{name}-{dtype}") for name, (run, dtypes) in RUNS.items() for dtype in dtypes]


class Applies(torch.nn.Module):
    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run

    def forward(self, x: torch.Tensor, chosen: torch.Tensor) -> Any:
        return self.run(x, chosen)


def inputs(rows: int, columns: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows + columns)
    x = torch.randn(rows, columns, generator=generator).mul(3)
    x = x > 0 if dtype is torch.bool else x.to(torch.int64).to(dtype)
    return x, torch.rand(rows, columns, generator=generator) > 0.5


@pytest.mark.parametrize(("run", "dtype"), CASES)
@pytest.mark.one_in(7)
def test_the_file_gives_the_numbers_of_the_model(run: Run, dtype: torch.dtype) -> None:
    model, observer = Applies(run), InputObserver()
    with observer(model), torch.no_grad():
        for rows, columns in ((2, 6), (3, 9)):
            model(*inputs(rows, columns, dtype))
    program = observer.export(to="onnx")
    assert program.verify().verified, program.report
    for rows, columns in ((4, 5), (1, 7), (6, 6)):
        given = inputs(rows, columns, dtype)
        torch.testing.assert_close(program(*given), model(*given), atol=1e-2, rtol=1e-2)
