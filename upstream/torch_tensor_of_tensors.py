"""A tensor that is made of a list of tensors ends an export.

`torch.tensor([x.sum(), x.mean()])` reads the values of the two tensors, of which a trace has none. The same of plain
numbers is a constant, and of sizes it is computed.

Where: torch.export, torch.tensor
Fails with: torch 2.13.0
Thread: none known
In onlooker: `repairs.untraced_tensors`
"""

import warnings

import torch

warnings.simplefilter("ignore")


class Both(torch.nn.Module):
    def forward(self, x):
        return x * torch.tensor([x.sum(), x.mean()]).sum()


try:
    program = torch.export.export(Both(), (torch.rand(3, 4),))
    print("repaired: the program is exported")
except Exception as error:
    print(f"still there: {str(error).splitlines()[0]}")
