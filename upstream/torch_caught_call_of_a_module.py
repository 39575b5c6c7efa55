"""A call of a module that raises in a `try` block of the model ends the trace.

Where: torch.export
Fails with: torch 2.13.0
Thread: none known
In onlooker: `repairs.caught_calls`
"""

import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x):
        try:
            return self.layer(x, lengths=None)
        except TypeError:
            return self.layer(x)


try:
    torch.export.export(Model(), (torch.randn(2, 4),), strict=False)
except AssertionError as error:
    print("still there:", str(error).splitlines()[0])
else:
    print("repaired: exported")
