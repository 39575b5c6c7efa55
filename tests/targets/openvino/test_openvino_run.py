"""A compiled model of OpenVINO as a function of tensors of torch."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from onlooker.targets.openvino.run import openvino_runner
from onlooker.targets.openvino.settings import DeviceSettings
from target_models import rand

openvino = pytest.importorskip("openvino")


def compiled(kind: str, shape: list[int]) -> Any:
    """A model that adds one to its input."""
    from openvino import opset13

    value = opset13.parameter(shape, getattr(openvino.Type, kind))
    value.output(0).set_names({"x"})
    one = opset13.convert(opset13.constant(1.0), kind)
    model = openvino.Model([opset13.add(value, one)], [value], "one_more")
    return openvino.Core().compile_model(model, "CPU", DeviceSettings().properties)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("f32", torch.float32),
        ("f16", torch.float16),
        ("bf16", torch.bfloat16),
        ("f64", torch.float64),
        ("i64", torch.int64),
        ("i32", torch.int32),
        ("u8", torch.uint8),
    ],
)
def test_every_dtype_goes_in_and_comes_out(kind: str, dtype: torch.dtype) -> None:
    run = openvino_runner(compiled(kind, [-1, -1]), ["unused", "x"], 1)
    wide = torch.arange(12).reshape(3, 4).to(dtype)
    for x in (wide, wide.T, wide[:, ::2], wide[:0]):
        (result,) = run([None, x])
        assert result.dtype == dtype
        assert torch.equal(result, x + 1)


def test_results_are_memory_of_their_own_and_inputs_stay_as_they_are() -> None:
    run = openvino_runner(compiled("f32", [-1]), ["x"], 1)
    x = torch.zeros(3)
    (first,) = run([x])
    (second,) = run([first])
    assert (x.tolist(), first.tolist(), second.tolist()) == ([0] * 3, [1] * 3, [2] * 3)


def test_ints_and_floats_are_those_of_python() -> None:
    run = openvino_runner(compiled("i64", []), ["x"], 1, are_ints=(True,))
    assert run([2**20]) == [2**20 + 1]
    run = openvino_runner(compiled("f64", []), ["x"], 1, are_floats=(True,))
    assert run([torch.tensor(0.5, dtype=torch.float64)]) == [1.5]


def test_several_threads_may_run_one_model() -> None:
    run = openvino_runner(compiled("f32", [-1, -1]), ["x"], 1)
    inputs = [rand(number % 7 + 1, 300) for number in range(64)]
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda x: run([x])[0], inputs))
    assert all(torch.equal(result, x + 1) for result, x in zip(results, inputs, strict=True))


def test_a_call_that_openvino_refuses_is_a_runtime_error() -> None:
    run = openvino_runner(compiled("f32", [-1, 3]), ["x"], 1)
    with pytest.raises(RuntimeError, match="shape"):
        run([torch.zeros(2, 4)])
    assert run([torch.zeros(2, 3)])[0].sum() == 6


def test_the_cpu_has_as_many_threads_as_torch_unless_the_user_says_otherwise() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert DeviceSettings().properties["INFERENCE_NUM_THREADS"] == 3
        assert DeviceSettings(config={"INFERENCE_NUM_THREADS": 2}).properties["INFERENCE_NUM_THREADS"] == 2
        assert "INFERENCE_NUM_THREADS" not in DeviceSettings("AUTO:GPU,CPU").properties
        torch.set_num_threads(1)
        assert DeviceSettings().properties["INFERENCE_NUM_THREADS"] == 2
    finally:
        torch.set_num_threads(before)
