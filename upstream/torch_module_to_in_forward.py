"""A forward that converts one of its own modules cannot be traced, also where nothing changes.

Where: torch.export
Fails with: torch 2.13.0, 2.15.0
Thread: https://github.com/pytorch/pytorch/issues/153056 (a repair: https://github.com/pytorch/pytorch/pull/185595)
In onlooker: `repairs.unchanged_modules`
"""

import torch


class Router(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)

    def forward(self, x):
        self.layer = self.layer.to(x.dtype)
        return self.layer(x)


try:
    torch.export.export(Router(), (torch.randn(2, 4),), strict=False)
except RuntimeError as error:
    print("still there:", str(error).splitlines()[0])
else:
    print("repaired: exported")
