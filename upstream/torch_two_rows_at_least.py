"""A result that is as long as values say has two rows at least, though nothing says so.

`create_unbacked_symint`, which is deprecated and which the operators of torchvision call, begins at 2. The exported
program of a detector then refuses an image in which one box is kept, or none.

Where: torch.library
Fails with: torch 2.13.0
Thread: none known
In onlooker: `repairs.numbers.by_values`
"""

import warnings

import torch

warnings.simplefilter("ignore")


@torch.library.custom_op("upstream::positive", mutates_args=())
def positive(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0]


@positive.register_fake
def _(x):
    return x.new_empty(torch.library.get_ctx().create_unbacked_symint())


class Kept(torch.nn.Module):
    def forward(self, x):
        return positive(x) * 2


program = torch.export.export(Kept(), (torch.tensor([1.0, 2.0, -3.0]),))
try:
    program.module()(torch.tensor([-1.0, 2.0, -3.0]))
    print("repaired: the program takes a call of which one row is kept")
except RuntimeError as error:
    print(f"still there: {str(error).splitlines()[0]}")
