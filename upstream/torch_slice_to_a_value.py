"""A part that ends at a value, of a tensor that was written in place, is exported and not decomposed.

`x[:, : lengths.max()]` has a length of its own in a trace. In the next one, which `run_decompositions` makes for each
converter, functionalisation cuts the part once more, and no result has the second length.

Where: torch.export.ExportedProgram.run_decompositions
Fails with: torch 2.13.0
Thread: none known
In onlooker: `slices_measured_anew` cuts a copy of what was written to
"""

import torch


class Written(torch.nn.Module):
    def forward(self, x, lengths):
        return (x + 1).add_(1)[:, : lengths.max().item()]


dim = torch.export.Dim.DYNAMIC
shapes = ({0: dim, 1: dim}, {0: dim})
program = torch.export.export(
    Written(), (torch.ones(2, 9), torch.tensor([3, 5])), dynamic_shapes=shapes
)
try:
    program.run_decompositions()
except Exception as error:
    print("still there:", str(error).splitlines()[0].partition(" [")[0])
else:
    print("repaired: it is decomposed")
