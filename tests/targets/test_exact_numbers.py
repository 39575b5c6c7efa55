"""Runtimes give the numbers of torch for 64-bit ints, and for the mean of none."""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from onlooker import InputObserver, Program

#: 90 days of time stamps in milliseconds, so that the low halves of two of them often differ in their highest bit
BEGIN, DAYS = 1_767_225_600_000, 90 * 86_400_000


class Model(torch.nn.Module):
    """Computes what a function does."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> Any:
        return self.function(*args)


def program_of(function: Callable[..., Any], to: str, *calls: tuple[torch.Tensor, ...]) -> Program:
    model, observer = Model(function).eval(), InputObserver()
    with observer(model), torch.no_grad():
        for call in calls:
            model(*call)
    return observer.export(to=to)


def stamps(rows: int, columns: int) -> torch.Tensor:
    return BEGIN + torch.randint(0, DAYS, (rows, columns))


CHOICES: dict[str, Callable[[torch.Tensor], Any]] = {
    "amax": lambda x: x.amax(1, keepdim=True),
    "amin of two": lambda x: x.amin((0, 1)),
    "max": lambda x: x.max(),
    "min of one": lambda x: tuple(x.min(1)),
    "maximum": lambda x: torch.maximum(x, x.flip(0)),
    "minimum of shorter ones": lambda x: torch.minimum(x, x.int()),
    "clamp": lambda x: x.clamp(BEGIN, BEGIN + DAYS // 2),
    "clamp at tensors": lambda x: x.clip(min=x[:1]),
    "clamp_max": lambda x: torch.clamp_max(x, 11),
    "clamp_": lambda x: x.clone()[:, 1:].clamp_(max=BEGIN + DAYS // 2),
    "relu": lambda x: (x - BEGIN - DAYS // 2).relu(),
    "cummin": lambda x: x.cummin(1)[0],
}


@pytest.mark.parametrize("name", CHOICES)
def test_the_greater_one_of_long_ints_is_that_of_torch(name: str) -> None:
    pytest.importorskip("onnxruntime")
    torch.manual_seed(0)
    program = program_of(CHOICES[name], "onnx", (stamps(2, 5),), (stamps(3, 4),))
    assert program.verify().verified
    for _ in range(20):
        x = stamps(4, 9)
        torch.testing.assert_close(program(x), CHOICES[name](x), rtol=0, atol=0)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="its kernels for other processors are others")
def test_onnx_runtime_itself_takes_another_one_for_the_greatest() -> None:
    """Once it does not, the pass for long ints may go."""
    onnxruntime = pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    helper, ints = onnx.helper, onnx.TensorProto.INT64
    values = [helper.make_tensor_value_info(name, ints, ["n"]) for name in ("x", "y", "z")]
    graph = helper.make_graph([helper.make_node("Max", ["x", "y"], ["z"])], "g", values[:2], values[2:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    torch.manual_seed(0)
    x, y = (stamps(1, 500)[0].numpy() for _ in range(2))
    (found,) = session.run(None, {"x": x, "y": y})
    assert (found != numpy.maximum(x, y)).any()


@pytest.mark.parametrize("to", ["onnx", "openvino"])
def test_the_mean_of_no_rows_is_no_number(to: str) -> None:
    pytest.importorskip("openvino" if to == "openvino" else "onnxruntime")

    def means(x: torch.Tensor, mask: torch.Tensor) -> Any:
        return x[mask].mean(0), x[mask].mean(), x[mask].mean((0, 1), True)

    masks = torch.tensor([[True, False, True], [False, False, False]])
    program = program_of(means, to, (torch.randn(3, 4), masks[0]), (torch.randn(2, 4), masks[0, :2]))
    assert program.verify().verified
    for mask in masks:
        x = torch.randn(3, 4)
        torch.testing.assert_close(program(x, mask), means(x, mask), equal_nan=True)


@pytest.mark.parametrize("to", ["onnx", "openvino"])
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8])
@pytest.mark.one_in(3)
def test_positions_of_a_long_mask_do_not_wrap(to: str, dtype: torch.dtype) -> None:
    def positions(mask: torch.Tensor) -> torch.Tensor:
        return (mask.cumsum(-1) - 1).clamp(min=0)

    program = program_of(positions, to, *((torch.ones(rows, rows + 3, dtype=dtype),) for rows in (2, 5)))
    assert program.verify().verified, program.report
    long = torch.ones(2, 700, dtype=dtype)
    assert torch.equal(program(long), positions(long))


class Pooled(torch.nn.Module):
    """The greatest, and the least, of the rows that a mask leaves: infinite where it leaves none."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> Any:
        hidden = ~mask[..., None]
        top = x.masked_fill(hidden, -torch.inf).amax(1)
        low = x.masked_fill(hidden, torch.inf).min(1, keepdim=True)[0]
        return torch.where(top == -torch.inf, 0, top), low, x[0].masked_fill(hidden[0], -torch.inf).amax()


@pytest.mark.parametrize("to", ["openvino", "onnx"])
def test_the_greatest_of_infinite_numbers_is_infinite(to: str) -> None:
    model, observer = Pooled().eval(), InputObserver()
    with observer(model), torch.no_grad():
        for rows, length in ((2, 5), (3, 9)):
            model(torch.randn(rows, length, 4), torch.ones(rows, length).bernoulli().bool())
    program = observer.export(to=to)
    assert program.verify().verified, program.report
    x, mask = torch.randn(2, 6, 4), torch.zeros(2, 6, dtype=torch.bool)
    mask[1, :3] = True
    torch.testing.assert_close(program(x, mask), model(x, mask))


@pytest.mark.parametrize("size", [1e2, 1e6])
def test_the_rest_of_a_large_float_has_all_digits_in_onnx(size: float) -> None:
    def rests(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x % 0.7, x % y, x.remainder(-0.3), 7.5 % y, x // 0.1, torch.div(x, y, rounding_mode="floor")

    drawn = [(torch.randn(rows, 4) * 100, torch.randn(rows, 4)) for rows in (2, 3)]
    program = program_of(rests, "onnx", *drawn)
    assert program.verify().verified, program.report
    x, y = torch.randn(5, 4) * size, torch.randn(5, 4)
    torch.testing.assert_close(program(x, y), rests(x, y))
