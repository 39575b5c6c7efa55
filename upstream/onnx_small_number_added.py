"""A small number that is added is lost in ONNX: the optimizer takes 1e-8 for 0.

Where: onnxscript.rewriter
Fails with: torch 2.13.0 with onnxscript 0.7.2
Thread: none known
In onlooker: `targets.onnx.convert.small_numbers_kept`
"""

import contextlib
import io
import warnings

import onnxruntime
import torch

warnings.simplefilter("ignore")


class Root(torch.nn.Module):
    def forward(self, x):
        return 1 / torch.sqrt(x + 1e-8)


x = torch.zeros(3)
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    program = torch.onnx.export(Root(), (x,), dynamo=True, verbose=False)
session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
(found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
if found[0] > 1e5:
    print(f"still there: {found[0]} for {Root()(x)[0]:.0f}")
else:
    print("repaired:", found[0])
