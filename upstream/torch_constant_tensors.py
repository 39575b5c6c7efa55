"""An `if` by the values of a constant with more than one number ends an export.

`torch.linspace(0, 1, 5)` has the same values in each call. A trace keeps the value of a constant with one number, and
of no other, so that the times of a solver that are compared in Python are unknown.

Where: torch.export, FakeTensorMode
Fails with: torch 2.13.0
Thread: none known
In onlooker: `repairs.constant_tensors`
"""

import warnings

import torch

warnings.simplefilter("ignore")


class Steps(torch.nn.Module):
    def forward(self, x):
        times = torch.linspace(0, 1, 5)
        if (times[1:] > times[:-1]).all():
            x = x * 2
        return x


try:
    program = torch.export.export(Steps(), (torch.rand(3, 4),))
    print("repaired: the program is exported")
except Exception as error:
    print(f"still there: {str(error).splitlines()[0]}")
