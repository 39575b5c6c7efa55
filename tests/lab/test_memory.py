"""Where there is no memory for a run, nothing is said of the model."""

from __future__ import annotations

import pytest
import torch

from onlooker import InputObserver
from onlooker.lab.memory import is_out_of_memory

ERRORS = [
    MemoryError(),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:124] . DefaultCPUAllocator: can't allocate memory: you tried to"),
]


class Small(torch.nn.Module):
    """Has memory for so many numbers."""

    def __init__(self, most: int, error: BaseException) -> None:
        super().__init__()
        self.most, self.error = most, error

    def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
        if type(x) is torch.Tensor and x.numel() > self.most:
            raise self.error
        return x.cumsum(1) if scale is None else x.cumsum(1) * scale


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_axis_that_found_no_memory_is_not_refused(error: BaseException) -> None:
    assert is_out_of_memory(error)
    model, observer = Small(20, error).eval(), InputObserver()
    with observer(model), torch.no_grad():
        model(torch.randn(2, 10))
    (plan,) = observer.plans()
    text = plan.explain("x", 1)
    assert "refused" not in text
    assert any("memory" in spot for spot in map(str, plan.blind)), plan.blind


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_trial_that_found_no_memory_is_left_out(error: BaseException) -> None:
    model, observer = Small(40, error).eval(), InputObserver()
    with observer(model), torch.no_grad():
        for rows, length in ((2, 5), (3, 7)):
            model(torch.randn(rows, length))
    program = observer.export()
    tally = program.verify()
    assert tally.verified
    assert tally.left_out > 0
    assert not program.report.unlawful
