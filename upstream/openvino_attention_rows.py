"""Attention with 128 columns or more, and one number for each of its rows: the result is what was in memory.

Queries, keys and values have any length. With 64 columns, or with a reshape between the attention and the product
with the numbers, the result is right.

Where: openvino, device CPU
Fails with: openvino 2026.4.1
Thread: none known
In onlooker: `targets.openvino.processor` puts a reshape behind such an attention
"""

import sys

import numpy

try:
    import openvino
    from openvino import opset13
except ImportError:
    print("not run: openvino is missing")
    sys.exit()


def is_wrong(columns):
    q, k, v = (opset13.parameter([-1, 2, -1, columns], numpy.float32) for _ in range(3))
    gate = opset13.parameter([-1, 1, -1, 1], numpy.float32)
    attention = opset13.scaled_dot_product_attention(q, k, v)
    gated = opset13.multiply(attention, gate)
    exact = {"INFERENCE_PRECISION_HINT": "f32"}
    model = openvino.compile_model(openvino.Model([gated], [q, k, v, gate]), "CPU", exact)
    # all rows are equal, so that attention gives them back
    rows = numpy.ones((1, 2, 10, columns), numpy.float32)
    given = model([rows, rows, rows, numpy.ones((1, 1, 10, 1), numpy.float32)])[0]
    return not numpy.allclose(given, 1, atol=0.1)


wrong = [columns for columns in (64, 128, 192, 256) if is_wrong(columns)]
print(f"still there: with {wrong} columns not all numbers are 1" if wrong else "repaired")
