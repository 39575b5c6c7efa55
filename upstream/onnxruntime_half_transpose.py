"""ONNX Runtime ends the process on a product of float16 whose first axis was moved.

A transpose and a product by a matrix, of float16. The CPU has no such product, so a cast stands before it.
MatmulTransposeFusion moves the transpose behind the cast, then finds that the ranks of the product differ, and says
that it changed nothing: what it moved has no edges, and the next reader ends with signal 11, while the session opens.

Where: onnxruntime, MatmulTransposeFusion
Fails with: onnxruntime 1.31.1
Thread: none known
In onlooker: `targets.onnx.served.variants`; `targets.first_run` opens every fresh file in another process first
"""

import subprocess
import sys
import tempfile

import numpy
import onnx
from onnx import TensorProto, helper, numpy_helper

OPENS = "import onnxruntime, sys; onnxruntime.InferenceSession(sys.argv[1])"

matrix = numpy_helper.from_array(numpy.ones((4, 4), numpy.float16), "matrix")
given = helper.make_tensor_value_info("x", TensorProto.FLOAT16, ["batch", "length", 4])
result = helper.make_tensor_value_info("y", TensorProto.FLOAT16, ["length", "batch", 4])
nodes = [
    helper.make_node("Transpose", ["x"], ["turned"], perm=[1, 0, 2]),
    helper.make_node("MatMul", ["turned", "matrix"], ["y"]),
]
graph = helper.make_graph(nodes, "turned", [given], [result], [matrix])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
onnx.checker.check_model(model, full_check=True)
with tempfile.TemporaryDirectory() as folder:
    onnx.save(model, f"{folder}/turned.onnx")
    done = subprocess.run(
        [sys.executable, "-c", OPENS, f"{folder}/turned.onnx"], capture_output=True, check=False
    )
print(
    "repaired: the session opens"
    if done.returncode == 0
    else f"still there: the process that opens it ends with {done.returncode}"
)
