"""`x[mask].numel() == y.numel()` ends a trace where `y` has 64 columns.

The count of values `u0` is at most 2**63 - 2. From `u0 == 64 * s0` follows a bound of `s0` by a division of floats,
which gives 2**57, and an assertion then finds that `64 * s0` exceeds `u0`. Models that put features of images at the
places of image tokens check just this equation.

Where: torch.export
Fails with: torch 2.13.0
Thread: none known
In onlooker: `repairs.numbers.greatest_sizes`
"""

import torch

AUTO = torch.export.Dim.AUTO


class Placed(torch.nn.Module):
    def forward(self, x, mask, features):
        places = x[mask]
        torch._check(places.numel() == features.numel())
        return places + features.flatten()


mask = torch.tensor([True, False, True, False])[:, None].expand(4, 64).clone()
example = torch.randn(4, 64), mask, torch.randn(2, 64)
try:
    torch.export.export(Placed(), example, dynamic_shapes=({0: AUTO}, {0: AUTO}, {0: AUTO}))
    print("repaired: the number of features stays a size")
except AssertionError as error:
    print(f"still there: {error}")
