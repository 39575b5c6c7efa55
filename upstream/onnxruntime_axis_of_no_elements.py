"""ONNX Runtime sums a tensor without elements over a negative axis to a wrong shape.

Where: onnxruntime (reductions of CPU)
Fails with: onnxruntime 1.31.1
Thread: none known
In onlooker: `targets.onnx.operators.empty`
"""

import numpy
import onnxruntime
from onnx import TensorProto, helper

onnxruntime.set_default_logger_severity(4)


def shape_of_the_sum(axis):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, None])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None])
    axes = helper.make_tensor("axes", TensorProto.INT64, [1], [axis])
    node = helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=0)
    graph = helper.make_graph([node], "sum", [x], [y], [axes])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (total,) = session.run(None, {"x": numpy.zeros((7, 0), numpy.float32)})
    return total.shape


if shape_of_the_sum(-1) != (7,):
    print(f"still there: {shape_of_the_sum(-1)} over axis -1, {shape_of_the_sum(1)} over axis 1")
else:
    print("repaired")
