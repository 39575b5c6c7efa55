"""A trace that decides by real values has whatever stood in memory before for the values of a parameter.

The values of a tensor are copied where its type is exactly torch.Tensor: that of a parameter is another one. A
branch on what a model computes with its weights is decided by chance, and the program asserts that side.

Where: torch.export
Fails with: torch 2.13.0
Thread: none known
In onlooker: `repairs.numbers.by_values`
"""

import torch
from torch._functorch import config


class Gate(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))

    def forward(self, x):
        return x + 1 if (x * self.weight).sum() > 0 else x - 1


sides = []
for number in (3.0, -3.0) * 10:
    # what is freed here may be the memory of the next tensors
    del (blocks := [torch.full((4,), number) for _ in range(200)])[:]
    with config.patch(fake_tensor_propagate_real_tensors=True):
        program = torch.export.export(Gate(), (torch.ones(4),), strict=False)
    sides.append(any(node.target is torch.ops.aten.add.Tensor for node in program.graph.nodes))
if all(sides):
    print("repaired: the values of the parameter decide")
else:
    n_wrong = sides.count(False)
    print(f"still there: {n_wrong} of {len(sides)} programs have x - 1, and the parameter is 1")
