"""An example of size 1 makes an axis a constant, without a word.

Where: torch.export
Fails with: torch 2.13.0, 2.15.0
Thread: https://github.com/pytorch/pytorch/pull/170264
In onlooker: `materialise` makes an example of its own, in which no size is 0 or 1
"""

import torch


class Double(torch.nn.Module):
    def forward(self, x):
        return x * 2


program = torch.export.export(
    Double(), (torch.ones(1, 3),), dynamic_shapes=({0: torch.export.Dim.AUTO},)
)
(given,) = [node for node in program.graph.nodes if node.op == "placeholder"]
size = given.meta["val"].shape[0]
if str(size).isdigit():
    print(f"still there: the axis that was asked to be dynamic is the constant {size}")
else:
    print("repaired: the axis is dynamic")
