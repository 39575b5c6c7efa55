"""The converter to ONNX has no function for some operators of torch.

Where: torch.onnx.export(dynamo=True)
Fails with: torch 2.13.0 and 2.15.0 with onnxscript 0.7.2
Thread: https://github.com/pytorch/pytorch/issues/102948 (cumprod)
In onlooker: `targets.onnx.operators.table` translates some of them; of others the error names the line of the model
"""

import contextlib
import io
import warnings

import torch

warnings.simplefilter("ignore")


class With(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


functions = {
    "cumprod": lambda x: torch.cumprod(x, 0),
    "cummax": lambda x: torch.cummax(x, 0)[0],
    "median": lambda x: torch.median(x, 0)[0],
    "kthvalue": lambda x: torch.kthvalue(x, 2, 0)[0],
    "erfinv": torch.erfinv,
    "lgamma": torch.lgamma,
    "linalg.inv": torch.linalg.inv,
}

missing = []
for name, function in functions.items():
    program = torch.export.export(With(function), (torch.eye(3) / 2,))
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            torch.onnx.export(program, dynamo=True, verbose=False)
    except torch.onnx.errors.OnnxExporterError:
        missing.append(name)
print(f"still there: {', '.join(missing)}" if missing else "repaired: all of them are converted")
