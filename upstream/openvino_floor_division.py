"""A quotient of ints that is to be rounded down is rounded towards zero.

`Divide` has the attribute `m_pythondiv`, which is true where nothing else is said: -7 divided by 2 is -4 then.

Where: openvino, device CPU
Fails with: openvino 2026.4.1
Thread: none known
In onlooker: `targets.openvino.processor` subtracts the remainder before
"""

import sys

import numpy

try:
    import openvino
    from openvino import opset13
except ImportError:
    print("not run: openvino is missing")
    sys.exit()

numbers = opset13.parameter([-1], numpy.int64)
quotient = opset13.divide(numbers, opset13.constant(numpy.int64(2)))
assert quotient.get_attributes()["m_pythondiv"]
model = openvino.compile_model(openvino.Model([quotient], [numbers]), "CPU")
[given] = model([numpy.array([-7])])[0]
print("repaired" if given == -4 else f"still there: -7 // 2 is {given}")
