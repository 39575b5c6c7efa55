"""A square weight that is read as it is and transposed is packed once.

``x @ w`` and ``x @ w.T`` read one constant. The plugin for processors keeps a packed weight by its address and its
shape, and both are the same: the second product is computed with the weight of the first. A convolution and a
transposed one with the same kernel are wrong too, as are products with a matrix and a view of it.

Where: openvino, device CPU
Fails with: openvino 2026.4.1
Thread: none known
In onlooker: `targets.openvino.processor` scales the weight of every further layout by a power of two
"""

import sys

import numpy

try:
    import openvino
    from openvino import opset13
except ImportError:
    print("not run: openvino is missing")
    sys.exit()

weight = numpy.arange(16, dtype=numpy.float32).reshape(4, 4)
rows = opset13.parameter([-1, 4], numpy.float32)
constant = opset13.constant(weight)
products = [opset13.matmul(rows, constant, False, is_transposed) for is_transposed in (False, True)]
exact = {"INFERENCE_PRECISION_HINT": "f32"}
model = openvino.compile_model(openvino.Model(products, [rows]), "CPU", exact)
x = numpy.ones((2, 4), numpy.float32)
given, wanted = model([x])[1][0], (x @ weight.T)[0]
is_right = numpy.allclose(given, wanted)
print("repaired" if is_right else f"still there: x @ w.T is {wanted}, and the model gives {given}")
