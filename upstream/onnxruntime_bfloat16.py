"""ONNX Runtime has no kernels for bfloat16 on the CPU.

Where: onnxruntime, CPUExecutionProvider
Fails with: onnxruntime 1.31.1, 1.32.0
Thread: none known
In onlooker: `targets.onnx.runtime.kernels` warns before a conversion; `verify(providers=[...])` proves it elsewhere
"""

import contextlib
import io
import warnings

import torch

warnings.simplefilter("ignore")

model = torch.nn.Linear(4, 2).bfloat16()
program = torch.export.export(model, (torch.ones(3, 4, dtype=torch.bfloat16),))
with contextlib.redirect_stdout(io.StringIO()):
    converted = torch.onnx.export(program, dynamo=True, verbose=False)
try:
    converted(torch.ones(3, 4, dtype=torch.bfloat16))
except Exception as error:
    print(f"still there: {type(error).__name__}")
else:
    print("repaired: a layer in bfloat16 runs")
