"""A pooling over all that two strides leave ends a trace: sympy cannot solve the equation of the sizes.

After a trace torch solves the conditions on sizes for a message, which nobody reads where no condition was broken. The
equation `(length / 4) // 2 == 7`, of a pooling with a window of 7, is an error there, and ends the export.

Where: torch.export
Fails with: torch 2.13.0
Thread: none known
In onlooker: `repairs.unsolved_equations`
"""

import torch
from torch import nn

AUTO = torch.export.Dim.AUTO
model = nn.Sequential(
    nn.Conv1d(3, 4, 1, 4), nn.MaxPool1d(2), nn.AvgPool1d(7, 1), nn.Conv1d(4, 4, 1)
)
try:
    torch.export.export(model, (torch.randn(2, 3, 56),), dynamic_shapes=({0: AUTO, 2: AUTO},))
    print("repaired: the length stays a size")
except NotImplementedError as error:
    print(f"still there: {' '.join(str(error).split())}")
