"""`repeat_interleave` by a size is converted to another shape: the expansion has a dimension too few.

Where: onnxscript.function_libs.torch_lib
Fails with: torch 2.13.0 with onnxscript 0.7.2
Thread: none known
In onlooker: `targets.taken_apart.TAKEN_APART`
"""

import contextlib
import io
import warnings

import onnxruntime
import torch

warnings.simplefilter("ignore")


class Repeated(torch.nn.Module):
    def forward(self, x, y):
        return x.repeat_interleave(y.shape[0], dim=0)


x, y = torch.arange(6.0).reshape(2, 3), torch.zeros(4)
shapes = {"x": {0: torch.export.Dim.DYNAMIC}, "y": {0: torch.export.Dim.DYNAMIC}}
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    program = torch.onnx.export(
        Repeated(), (x, y), dynamic_shapes=shapes, dynamo=True, verbose=False
    )
session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
inputs = dict(
    zip((port.name for port in session.get_inputs()), (x.numpy(), y.numpy()), strict=True)
)
try:
    (found,) = session.run(None, inputs)
except Exception as error:
    print("still there:", str(error).split("Status Message: ")[-1][:60])
else:
    is_right = found.shape == (8, 3) and (torch.from_numpy(found) == Repeated()(x, y)).all()
    print("repaired:" if is_right else "still there:", found.shape)
