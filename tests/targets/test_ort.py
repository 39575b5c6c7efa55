"""Tensors go into ONNX Runtime and come out: every dtype, empty, strided, scalar; and no memory is freed under them."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

pytest.importorskip("onnxruntime")
import onnxruntime
from onnx import TensorProto, helper

from onlooker.pytrees.numbers import as_numbers
from onlooker.targets.onnx.runtime.run import ort_runner

TYPES = {
    torch.float32: TensorProto.FLOAT,
    torch.float64: TensorProto.DOUBLE,
    torch.float16: TensorProto.FLOAT16,
    torch.bfloat16: TensorProto.BFLOAT16,
    torch.int64: TensorProto.INT64,
    torch.int32: TensorProto.INT32,
    torch.int8: TensorProto.INT8,
    torch.uint8: TensorProto.UINT8,
    torch.bool: TensorProto.BOOL,
    torch.uint16: TensorProto.UINT16,
    torch.uint32: TensorProto.UINT32,
    torch.uint64: TensorProto.UINT64,
    torch.float8_e4m3fn: TensorProto.FLOAT8E4M3FN,
    torch.float8_e4m3fnuz: TensorProto.FLOAT8E4M3FNUZ,
    torch.float8_e5m2: TensorProto.FLOAT8E5M2,
    torch.float8_e5m2fnuz: TensorProto.FLOAT8E5M2FNUZ,
}


def identity(*dtypes: torch.dtype, rank: int = 2) -> Any:
    """A session that gives its inputs ``x0, x1 ...`` back as ``y0, y1 ...``."""
    dims = ["n", "m", "k"][:rank]
    inputs = [helper.make_tensor_value_info(f"x{i}", TYPES[d], dims) for i, d in enumerate(dtypes)]
    outputs = [helper.make_tensor_value_info(f"y{i}", TYPES[d], dims) for i, d in enumerate(dtypes)]
    nodes = [helper.make_node("Identity", [f"x{i}"], [f"y{i}"]) for i in range(len(dtypes))]
    graph = helper.make_graph(nodes, "identity", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("beside", [[], [torch.bfloat16]], ids=["numpy", "dlpack"])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(
    "shape",
    [
        lambda x: x,
        lambda x: x[:0],
        lambda x: x.t(),
        lambda x: x[:, ::2],
        lambda x: x[1:2].expand(3, -1),
        lambda x: x[1, 2],
    ],
    ids=["whole", "empty", "t", "strided", "expanded", "scalar"],
)
def test_every_dtype_goes_in_and_comes_out(shape: Any, dtype: torch.dtype, beside: list[torch.dtype]) -> None:
    dtypes = [dtype, *beside]
    value = shape(torch.arange(12).reshape(3, 4).to(dtype))
    run = ort_runner(identity(*dtypes, rank=value.ndim), ["x0", "x1"], [f"y{i}" for i in range(len(dtypes))])
    first = run([value, torch.ones_like(value, dtype=torch.bfloat16)])[0]
    assert first.dtype == dtype
    assert first.shape == value.shape
    assert torch.equal(as_numbers(first), as_numbers(value))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_results_are_their_own_memory_and_outlive_everything(dtype: torch.dtype) -> None:
    session = identity(dtype)
    run = ort_runner(session, ["x0"], ["y0"])
    value = torch.ones(64, 64, dtype=dtype)
    (first,), (second,) = run([value]), run([value * 2])
    value.zero_()
    second.fill_(5)
    assert bool((first == 1).all())
    del session, run, value, second
    gc.collect()
    junk = [torch.full((64, 64), 9, dtype=dtype) for _ in range(50)]
    assert bool((first == 1).all())
    assert len(junk) == 50


def test_ints_come_as_ints_and_weights_need_no_detach() -> None:
    run = ort_runner(identity(torch.int64, torch.float32, rank=0), ["x0", "x1"], ["y0", "y1"], [True, False])
    number, tensor = run([7, torch.nn.Parameter(torch.tensor(2.0))])
    assert type(number) is int
    assert number == 7
    assert torch.equal(tensor, torch.tensor(2.0))


def test_inputs_that_the_session_does_not_have_are_left_out() -> None:
    run = ort_runner(identity(torch.float32), ["other", "x0"], ["y0"])
    assert torch.equal(run([torch.zeros(1), torch.ones(1, 2)])[0], torch.ones(1, 2))


@pytest.mark.parametrize("wrong", [torch.ones(1, 2, dtype=torch.int64), torch.ones(1, 2, 3)], ids=["dtype", "rank"])
def test_what_onnx_runtime_refuses_is_a_runtime_error(wrong: torch.Tensor) -> None:
    run = ort_runner(identity(torch.float32), ["x0"], ["y0"])
    with pytest.raises(RuntimeError, match=r"x0|input data type"):
        run([wrong])
