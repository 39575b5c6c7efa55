"""`int()` of a size makes the size a constant.

Where: torch.export
Fails with: torch 2.13.0, 2.15.0
Thread: none known
In onlooker: `repairs.numbers.size_ints`, for the length of a trace
"""

import torch


class Half(torch.nn.Module):
    def forward(self, x):
        return x[: int(x.shape[0]) // 2]


program = torch.export.export(
    Half(), (torch.ones(8),), dynamic_shapes=({0: torch.export.Dim.AUTO},)
)
(given,) = [node for node in program.graph.nodes if node.op == "placeholder"]
size = given.meta["val"].shape[0]
if str(size).isdigit():
    print(f"still there: the axis is the constant {size}")
else:
    print("repaired: the axis is dynamic")
