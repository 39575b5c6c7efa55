"""A size that is the sum of two others gets 4 as its lower bound, since each of these starts at 2.

Where: torch.export
Fails with: torch 2.13.0, 2.15.0
Thread: none known
In onlooker: `graphs.one_plan.regions` proves for which sizes a graph holds, and widens the ranges that torch assumed
"""

import torch


class Joined(torch.nn.Module):
    def forward(self, past, step, mask):
        return torch.cat([past, step]) * mask


any_size = {0: torch.export.Dim.DYNAMIC}
example = (torch.ones(5), torch.ones(3), torch.ones(8))
program = torch.export.export(Joined(), example, dynamic_shapes=(any_size, any_size, any_size))
try:
    program.module()(torch.ones(1), torch.ones(1), torch.ones(2))
except (AssertionError, RuntimeError) as refusal:
    print("still there:", str(refusal).splitlines()[0])
else:
    print("repaired: the program takes sizes 1, 1 and 2")
