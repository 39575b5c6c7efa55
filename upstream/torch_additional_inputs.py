"""`AdditionalInputs` cannot hold a call that lacks an optional argument.

Where: torch.export.AdditionalInputs
Fails with: torch 2.13.0, 2.15.0
Thread: none known
In onlooker: calls with and without an argument are told apart, and a neutral value is searched for the argument
"""

import torch


class Masked(torch.nn.Module):
    def forward(self, x, mask=None):
        return x if mask is None else x * mask


x = torch.ones(3, 4)
calls = torch.export.AdditionalInputs()
calls.add((), {"x": torch.ones(5, 4), "mask": torch.ones(5, 4)})
calls.add((), {"x": torch.ones(6, 4)})
try:
    torch.export.export(Masked(), (), {"x": x, "mask": x}, dynamic_shapes=calls)
except Exception as error:
    print(f"still there: {type(error).__name__}:", str(error).splitlines()[0][:80])
else:
    print("repaired: exported")
