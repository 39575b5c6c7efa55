"""Formulas over sizes as nodes of ONNX give what Python gives."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from onlooker.core.sizes.formula import holds, read_formula

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

FORMULAS = (
    "x.shape[0] > 4 and x.shape[0] % 2 == 0",
    "x.shape[0] < 3 or not x.shape[1] <= 2",
    "(x.shape[0] - 5) // 2 == -2",
    "(x.shape[0] - 5) % 3 == 1",
    "x.shape[0] * x.shape[1] != 12",
    "x.shape[0] / 2 >= 2.5",
    "min(x.shape[0], 3) == max(x.shape[1], 2)",
    "math.floor(x.shape[0] / 2) == math.ceil(x.shape[1] / 2)",
    "int(x.shape[0] / 3) == 1 and abs(x.shape[1] - 4) < 3",
    "1 < x.shape[0] <= x.shape[1]",
    "(2 if x.shape[0] > 3 else 1) == x.shape[1]",
    "x.shape[0] ** 2 > 10 and math.sqrt(x.shape[1]) < 2",
    "-x.shape[0] < -2 and True",
)


def model_of(formula: str) -> Any:
    from onlooker.targets.onnx.merge import _Nodes

    made = _Nodes()
    value = made.value(read_formula(formula, ["x"]), {"x": "input.0"})
    made.add("Identity", value, output="answer")
    helper = onnx.helper
    x = helper.make_tensor_value_info("input.0", onnx.TensorProto.FLOAT, ["a", "b"])
    answer = helper.make_tensor_value_info("answer", onnx.TensorProto.BOOL, [])
    graph = helper.make_graph(made.nodes, "g", [x], [answer])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    return onnxruntime.InferenceSession(model.SerializeToString())


@pytest.mark.parametrize("formula", FORMULAS)
def test_a_formula_is_what_python_says(formula: str) -> None:
    session = model_of(formula)
    for rows in range(8):
        for columns in range(6):
            text = formula.replace("x.shape[0]", "rows").replace("x.shape[1]", "columns")
            wanted = holds(text, {"rows": rows, "columns": columns})
            given = {"input.0": numpy.zeros((rows, columns), dtype=numpy.float32)}
            assert bool(session.run(None, given)[0]) == wanted, (rows, columns)
