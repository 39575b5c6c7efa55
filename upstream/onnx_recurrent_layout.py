"""The converter writes an LSTM for the steps of the example alone.

Where: torch.onnx.export(dynamo=True)
Fails with: torch 2.13.0 and 2.15.0 with onnxscript 0.7.2
Thread: https://github.com/pytorch/pytorch/issues/115092 (the same steps in torch.export)
In onlooker: `targets.onnx.operators.recurrent`
"""

import contextlib
import io
import warnings

import torch

warnings.simplefilter("ignore")

model = torch.nn.LSTM(4, 3).eval()  # steps first
program = torch.export.export(
    model,
    (torch.randn(7, 2, 4),),
    dynamic_shapes=({0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO},),
)
with contextlib.redirect_stdout(io.StringIO()):
    converted = torch.onnx.export(program, dynamo=True, verbose=False)
x = torch.randn(5, 3, 4)
try:
    given = converted(x)[0]
except Exception as error:
    print(f"still there: 5 steps of 3 rows: {type(error).__name__}")
else:
    with torch.no_grad():
        expected = model(x)[0]
    same = given.shape == expected.shape and torch.allclose(given, expected, atol=1e-5)
    print(
        "repaired: 5 steps of 3 rows are right"
        if same
        else "still there: 5 steps of 3 rows are wrong"
    )
