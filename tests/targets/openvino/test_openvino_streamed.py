"""Models of OpenVINO whose weights are written one at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from onlooker.core.errors import ExportError
from onlooker.targets import stand_ins
from onlooker.targets.openvino.streamed import arrays_of, write_streamed
from onlooker.targets.stand_ins import StandIns

openvino = pytest.importorskip("openvino")


def constant(array: Any) -> Any:
    return openvino.op.Constant(array, shared_memory=True)


def branches(first: Any, second: Any) -> Any:
    """x @ first, or x @ second + 1 where the number is 0: a constant in each branch."""
    from openvino import opset13 as op

    number, x = op.parameter([1], numpy.int64, name="number"), op.parameter([-1, 8], numpy.float32, name="x")
    number.set_friendly_name('of "branches" & more')
    made = op.if_op(op.not_equal(number, op.constant(numpy.int64(0))).output(0))
    bodies = []
    for weight, plus in ((first, 0.0), (second, 1.0)):
        inner = op.parameter([-1, 8], numpy.float32)
        product = op.matmul(inner, constant(weight), False, True)
        result = op.result(op.add(product, op.constant(numpy.float32(plus))))
        bodies.append((openvino.Model([result], [inner], "body"), inner, result))
    made.set_then_body(bodies[0][0])
    made.set_else_body(bodies[1][0])
    made.set_input(x.output(0), bodies[0][1], bodies[1][1])
    chosen = made.set_output(bodies[0][2], bodies[1][2])
    both = op.add(chosen, op.matmul(x, constant(first), False, True))  # the weight stands there twice
    return openvino.Model([op.result(both)], [number, x], "branches")


def test_weights_of_branches_stand_where_they_are_read(tmp_path: Path) -> None:
    weights = [torch.randn(8, 8), torch.randn(8, 8)]
    known = StandIns()
    pool = [memory.view(8, 8) for memory in known.pool([64, 64], torch.float32)]
    for number, memory in enumerate(pool):
        known.add(memory, lambda number=number: weights[number], f"w{number}")
    paths = [tmp_path / "main.xml", tmp_path / "main_2.xml"]
    with stand_ins.using(known), stand_ins.without_numbers():
        models = [branches(*(memory.numpy() for memory in pool)) for _ in paths]
        assert sum(known.find(array) is not None for array in arrays_of(models[0])) == 3
        write_streamed(models, paths, tmp_path / "weights.bin")
    assert known.checked == {"w0", "w1"}
    assert (tmp_path / "weights.bin").stat().st_size < 4 * 256  # two weights of 256 bytes, and six numbers
    x = torch.randn(3, 8)
    for path in paths:
        model = openvino.Core().read_model(path, tmp_path / "weights.bin")
        compiled = openvino.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        for number in (0, 1):
            (got,) = compiled([numpy.array([number]), x.numpy()]).values()
            chosen = x @ weights[0].T if number else x @ weights[1].T + 1
            torch.testing.assert_close(torch.from_numpy(got), chosen + x @ weights[0].T)


def test_another_order_of_constants_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = branches(numpy.ones((8, 8), numpy.float32), numpy.zeros((8, 8), numpy.float32))
    in_order = type(model).get_ordered_ops
    monkeypatch.setattr(type(model), "get_ordered_ops", lambda self: in_order(self)[::-1])
    with pytest.raises(ExportError, match=r"other constants into main\.xml"):
        write_streamed([model], [tmp_path / "main.xml"], tmp_path / "main.bin")
