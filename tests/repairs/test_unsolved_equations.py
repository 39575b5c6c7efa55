"""A pooling over all that strides leave: the sizes that give one window are one graph, all others are another."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from onlooker import InputObserver, RejectedCallError
from onlooker.repairs.unsolved_equations import unsolved_equations_stay

AUTO = torch.export.Dim.AUTO


def pooled(stride: int, window: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv1d(3, 4, 1, stride), nn.MaxPool1d(2), nn.AvgPool1d(window, 1), nn.Conv1d(4, 4, 1)
    ).eval()


def test_torch_ends_the_trace_without_the_repair() -> None:
    model, call = pooled(4, 7), (torch.randn(2, 3, 56),)
    shapes = ({0: AUTO, 2: AUTO},)
    with pytest.raises(NotImplementedError, match="cannot be solved"):
        torch.export.export(model, call, dynamic_shapes=shapes)
    with unsolved_equations_stay():
        program = torch.export.export(model, call, dynamic_shapes=shapes).module()
    for length in (53, 55):  # of one window as well
        x = torch.randn(3, 3, length)
        torch.testing.assert_close(program(x), model(x))


@pytest.mark.parametrize(("stride", "window"), [(2, 3), (4, 7), (8, 5)])
def test_all_lengths_are_served_that_the_model_takes(stride: int, window: int) -> None:
    model, whole = pooled(stride, window), 2 * stride * window
    observer = InputObserver()
    with observer(model), torch.no_grad():
        model(torch.randn(2, 3, whole))
    program = observer.export()
    assert program.verify().verified
    for length in (whole, whole - stride + 1, whole + 1, 2 * whole, 3 * whole + 5):
        for batch in (1, 4):
            x = torch.randn(batch, 3, length)
            with torch.no_grad():
                torch.testing.assert_close(program(x), model(x))
    with pytest.raises(RejectedCallError):
        program(torch.randn(2, 3, whole // 2))  # no window at all: the model refuses it too


@pytest.mark.parametrize(("stride", "window"), [(2, 3), (4, 7), (8, 5)])
def test_lengths_of_one_window_are_a_range(stride: int, window: int) -> None:
    model, whole = pooled(stride, window), 2 * stride * window
    observer = InputObserver()
    with observer(model), torch.no_grad():
        model(torch.randn(2, 3, whole))
        model(torch.randn(2, 3, whole - 1))
    program = observer.export(ranges={"input_dim_2": (whole - stride + 1, whole)})
    assert program.verify().verified
    x = torch.randn(3, 3, whole - stride + 1)
    with torch.no_grad():
        torch.testing.assert_close(program(x), model(x))
