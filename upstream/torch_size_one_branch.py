"""A branch on `size == 1` is settled by an assumption, and no guard says so.

torch.export assumes that no dynamic size is 0 or 1. `x.shape[0] == 1` is then False in every trace, without a guard,
and the program takes a call of size 1 all the same: it answers with the numbers of the other side.

Where: torch.export
Fails with: torch 2.10.0, 2.13.0, 2.15.0
Thread: https://github.com/pytorch/pytorch/pull/170264 (a warning for examples of size 1; not this case)
In onlooker: `proofs.decisions` reads every decision about sizes that the model takes, also those that leave no guard
"""

import torch


class Single(torch.nn.Module):
    def forward(self, x):
        return x * 100 if x.shape[0] == 1 else x + 1


example = torch.zeros(4)
program = torch.export.export(
    Single(), (example,), dynamic_shapes=({0: torch.export.Dim("n", min=1)},)
)

one = torch.tensor([5.0])
try:
    given = program.module()(one)
except (AssertionError, RuntimeError) as refusal:
    print("repaired: a call of size 1 is refused:", str(refusal).splitlines()[0])
else:
    if torch.equal(given, Single()(one)):
        print("repaired: the program gives what the model gives")
    else:
        print(
            f"still there: the model gives {Single()(one).tolist()}, the program {given.tolist()}"
        )
