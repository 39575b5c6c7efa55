"""The converter to ONNX has no axes for complex numbers.

Rotary embeddings of some models multiply by complex numbers, and add, choose or expand an axis before.

Where: torch.onnx.export(dynamo=True)
Fails with: torch 2.13.0 and 2.15.0 with onnxscript 0.7.2
Thread: none known
In onlooker: `targets.onnx.operators.complex_numbers`
"""

import contextlib
import io
import warnings

import torch

warnings.simplefilter("ignore")


class Turned(torch.nn.Module):
    def forward(self, x):
        turned = torch.view_as_complex(x).unsqueeze(0).expand(2, -1)
        return torch.view_as_real(turned[0])


program = torch.export.export(Turned(), (torch.randn(3, 2),))
try:
    with contextlib.redirect_stdout(io.StringIO()):
        torch.onnx.export(program, dynamo=True, verbose=False)
except torch.onnx.errors.OnnxExporterError as error:
    print("still there:", type(error.__cause__ or error).__name__)
else:
    print("repaired: converted")
