"""The converter to ONNX drops what a graph asserts of values.

A branch on a value is exported with strict=True, or by `torch._check`, as one side and an assertion. Without the
assertion the model of ONNX takes calls that the program of torch refuses.

Where: torch.onnx.export(dynamo=True)
Fails with: torch 2.13.0 and 2.15.0 with onnxscript 0.7.2
Thread: https://github.com/pytorch/pytorch/pull/125930 (dropped on purpose)
In onlooker: `targets.onnx.operators.assertions` keeps them, those of inner graphs (`cond`, `scan`) too
"""

import contextlib
import io
import warnings

import torch

warnings.simplefilter("ignore")


class Positive(torch.nn.Module):
    def forward(self, x):
        count = x.item()
        torch._check(count > 2)
        return x + 1


program = torch.export.export(Positive(), (torch.tensor(5),))
with contextlib.redirect_stdout(io.StringIO()):
    converted = torch.onnx.export(program, dynamo=True, verbose=False)
operators = {node.op_type for node in converted.model.graph}
kept = operators & {"Greater", "GreaterOrEqual", "Less", "LessOrEqual", "If", "Gather"}
print(
    f"repaired: the graph has {kept}"
    if kept
    else f"still there: the graph has {sorted(operators)} alone"
)
