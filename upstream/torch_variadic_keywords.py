"""`dynamic_shapes` for a `forward(**kwargs)` ends with an assertion of torch itself.

Where: torch.export
Fails with: torch 2.13.0; 2.15.0 exports, and the program fails on its own guards
Thread: https://github.com/pytorch/pytorch/issues/150022
In onlooker: `patches.variadic_keywords`
"""

import torch


class Sum(torch.nn.Module):
    def forward(self, **kwargs):
        return kwargs["x"] + kwargs["y"]


any_size = {0: torch.export.Dim.DYNAMIC}
arguments = {"x": torch.ones(3), "y": torch.ones(3)}
try:
    program = torch.export.export(
        Sum(), (), kwargs=arguments, dynamic_shapes={"kwargs": {"x": any_size, "y": any_size}}
    )
    program.module()(x=torch.ones(5), y=torch.ones(5))
except (AssertionError, NameError) as error:
    print("still there:", str(error).splitlines()[0])
else:
    print("repaired: exported, and run with another size")
