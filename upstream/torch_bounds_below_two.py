"""A program that was decided by a length of 0 takes calls with a length of 1 and 2.

A length that values decide has no upper bound below 2, so that tests of sizes stay consistent. The assertion `u0 <= 0`
counts as said by the range, which is `u0 <= 2`, and is left out.

Where: torch.export
Fails with: torch 2.13.0
Thread: none known
In onlooker: `repairs.numbers.implied_bounds`
"""

import logging
import warnings

import torch
import torch._functorch.config

logging.disable(logging.CRITICAL)
warnings.simplefilter("ignore")


class Kept(torch.nn.Module):
    def forward(self, x):
        return x * 2 if x.nonzero().shape[0] > 0 else x + 1


model, example = Kept(), torch.zeros(5)
with torch._functorch.config.patch(fake_tensor_propagate_real_tensors=True):
    program = torch.export.export(model, (example,))
x = torch.tensor([3.0, 0, 0, 0, 0])
try:
    got = program.module()(x)
    is_right = torch.equal(got, model(x))
    print(
        "repaired: both sides are there"
        if is_right
        else f"still there: {got} where the model gives {model(x)}"
    )
except RuntimeError:
    print("repaired: the program refuses a call of the other side")
