"""A trace that decides by real values makes the lengths of the parts of a tensor constants.

torch compares each result with its values, and also where in its memory it begins. The second part of a split begins
at a sum of lengths; comparing that with a number is a decision of the trace, which the program asserts.

Where: torch.export
Fails with: torch 2.13.0
Thread: none known
In onlooker: `repairs.numbers.by_values`
"""

import torch
from torch._functorch import config


class Parts(torch.nn.Module):
    def forward(self, x, y):
        rows = [x[x > 0], y[y > 0]]
        first, second = torch.cat(rows).cumsum(0).split([one.shape[0] for one in rows])
        return first * 2, second * 3


x, y = torch.tensor([1.0, 2.0, -3.0]), torch.tensor([4.0, 5.0, 6.0])
with config.patch(fake_tensor_propagate_real_tensors=True):
    program = torch.export.export(Parts(), (x, y), strict=False)
try:
    program.module()(x.abs(), y)
    print("repaired: the program takes other lengths")
except RuntimeError as error:
    print(f"still there: {str(error).splitlines()[0]}")
