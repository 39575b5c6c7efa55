"""The sum of float16 becomes float32 in the model of ONNX.

Where: torch.onnx.export(dynamo=True)
Fails with: torch 2.13.0 and 2.15.0 with onnxscript 0.7.2
Thread: none known
In onlooker: `targets.onnx.convert._with_own_results` copies results in half precision, so that they are read
"""

import contextlib
import io
import warnings

import torch

warnings.simplefilter("ignore")


class Sum(torch.nn.Module):
    def forward(self, x):
        return x.sum(0)


program = torch.export.export(Sum(), (torch.ones(3, 4, dtype=torch.float16),))
with contextlib.redirect_stdout(io.StringIO()):
    converted = torch.onnx.export(program, dynamo=True, verbose=False)
(output,) = converted.model.graph.outputs
dtype = str(output.dtype)
print(
    "repaired: the output is FLOAT16"
    if dtype == "FLOAT16"
    else f"still there: the output is {dtype}"
)
