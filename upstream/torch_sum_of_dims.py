"""The length of a mask, `past + step`, cannot be written in `dynamic_shapes`.

Where: torch.export.Dim
Fails with: torch 2.13.0, 2.15.0
Thread: none known
In onlooker: relations are kept in the plan and in the contract; the trace gets hints
"""

import torch

past, step = torch.export.Dim("past"), torch.export.Dim("step")
try:
    past + step
except NotImplementedError as error:
    print("still there:", str(error).splitlines()[0])
else:
    print("repaired: a sum of two is a dimension")
