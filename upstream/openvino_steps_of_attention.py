"""Attention in the body of a TensorIterator, over one more row in each step: the result is what was in memory.

The queries are of any length, and the rows are a slice whose end is the number of the step. Up to 15 rows the result
is right, and so it is with a reshape between the first product and the softmax.

Where: openvino, device CPU
Fails with: openvino 2026.4.1
Thread: none known
In onlooker: `targets.openvino.processor` puts a reshape before such a softmax
"""

import sys

import numpy

try:
    import openvino
    from openvino import opset13
except ImportError:
    print("not run: openvino is missing")
    sys.exit()

ROWS = 40


def attention(rows, count):
    begin, step, axis = (opset13.constant(numpy.array([number])) for number in (0, 1, 1))
    seen = opset13.slice(rows, begin, count, step, axis)
    scores = opset13.matmul(rows, seen, False, True)
    return opset13.matmul(opset13.softmax(scores, -1), seen, False, False)


def model():
    counts = opset13.parameter([-1], numpy.int64)
    given = opset13.parameter([-1, -1, -1], numpy.float32)
    count = opset13.parameter([1], numpy.int64)
    rows = opset13.parameter([-1, -1, -1], numpy.float32)
    result = opset13.result(opset13.unsqueeze(attention(rows, count), opset13.constant([0])))
    loop = opset13.tensor_iterator()
    loop.set_body(openvino.Model([result], [count, rows], "step"))
    loop.set_sliced_input(count, counts.output(0), 0, 1, 1, -1, 0)
    loop.set_invariant_input(rows, given.output(0))
    made = loop.get_concatenated_slices(result.output(0), 0, 1, 1, -1, 0)
    return openvino.Model([opset13.result(made)], [counts, given], "loop")


exact = {"INFERENCE_PRECISION_HINT": "f32"}
compiled = openvino.compile_model(model(), "CPU", exact)
# all rows are equal, so that attention gives them back
rows = numpy.ones((1, ROWS, 4), numpy.float32)
given = compiled([numpy.arange(1, ROWS + 1), rows])[0]
wrong = [step + 1 for step in range(ROWS) if not numpy.allclose(given[step], 1, atol=0.01)]
print(f"still there: wrong with {wrong[0]} rows and more" if wrong else "repaired")
