"""ExecuTorch takes the sizes of the example for the greatest, where no bounds are given.

Where: executorch.exir
Fails with: executorch 1.5.1 with torch 2.13.0
Thread: https://github.com/pytorch/executorch/issues/20834
In onlooker: `to("executorch")` asks for an upper bound of every size (`bounds-needed`)
"""

import torch

try:
    from executorch.exir import to_edge
    from executorch.runtime import Runtime
except ImportError:
    raise SystemExit("not run: executorch is not installed") from None


class Double(torch.nn.Module):
    def forward(self, x):
        return x * 2


program = torch.export.export(
    Double(), (torch.ones(4),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)
)
buffer = to_edge(program).to_executorch().buffer
method = Runtime.get().load_program(buffer).load_method("forward")
try:
    method.execute([torch.ones(9)])
except RuntimeError as error:
    print("still there:", str(error).splitlines()[0])
else:
    print("repaired: 9 rows are taken after an example of 4")
