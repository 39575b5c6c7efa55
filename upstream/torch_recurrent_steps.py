"""The number of steps of an LSTM becomes a constant of the graph.

The operator takes any number of steps, but the function that finds the shapes of its results goes through them one by
one.

Where: torch.export
Fails with: torch 2.13.0, 2.15.0
Thread: https://github.com/pytorch/pytorch/issues/115092
In onlooker: `repairs.loops.recurrent_steps`
"""

import torch

program = torch.export.export(
    torch.nn.LSTM(4, 3, batch_first=True),
    (torch.randn(3, 7, 4),),
    dynamic_shapes=({1: torch.export.Dim.AUTO},),
)
steps = [node for node in program.graph.nodes if node.op == "placeholder"][-1].meta["val"].shape[1]
if str(steps).isdigit():
    print(f"still there: the steps are the constant {steps}")
else:
    print("repaired: the steps are dynamic")
