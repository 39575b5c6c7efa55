"""After an autocast region, a node of the exported graph may be missing among the users of its input.

Where: torch.export
Fails with: torch 2.13.0
Thread: none known
In onlooker: `torch_internals.graph_modules.note_users`
"""

import torch


class Positions(torch.nn.Module):
    @torch.autocast("cuda", enabled=False)
    def forward(self, x):
        return torch.arange(x.shape[1], dtype=x.dtype)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.positions = Positions()

    def forward(self, x):
        x = torch.nn.functional.dropout(x * 2, 0.1, self.training)
        return x + self.positions(x[:, 1:]).sum()


program = torch.export.export(Model().eval(), (torch.randn(2, 8, 4),), strict=False)
try:
    program.graph.eliminate_dead_code()
except SystemError as error:
    print("still there:", repr(error.__cause__))
else:
    print("repaired: the dead node is gone")
