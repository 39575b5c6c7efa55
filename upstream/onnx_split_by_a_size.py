"""A tensor that is split by a size cannot be converted to ONNX: the optimizer reads the size as a constant.

Where: onnxscript.optimizer
Fails with: torch 2.13.0 with onnxscript 0.7.2
Thread: none known
In onlooker: `targets.onnx.convert.splits_of_sizes_kept`
"""

import contextlib
import io
import warnings

import torch

warnings.simplefilter("ignore")


class Halves(torch.nn.Module):
    def forward(self, x):
        first, second = x.split(x.shape[0] // 2)
        return first + second


program = torch.export.export(
    Halves(), (torch.randn(8, 3),), dynamic_shapes=({0: torch.export.Dim.AUTO},)
)
try:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        torch.onnx.export(program, dynamo=True, verbose=False)
except Exception as error:
    while error.__cause__ is not None:
        error = error.__cause__
    print("still there:", str(error).splitlines()[0])
else:
    print("repaired: converted")
