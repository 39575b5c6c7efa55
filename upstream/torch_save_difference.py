"""A program that computes with `63 - n`, n a size, cannot be saved and loaded.

Where: torch.export.save
Fails with: torch 2.13.0
Thread: none known; https://github.com/pytorch/pytorch/pull/140084 was about the same text of expressions
In onlooker: the trace is made so that a size is subtracted in the graph
"""

import io

import torch


class Rest(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.pad(x, (0, 63 - x.shape[0]))


program = torch.export.export(
    Rest(), (torch.ones(7),), dynamic_shapes=({0: torch.export.Dim("n", min=2, max=60)},)
)
file = io.BytesIO()
try:
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    same = torch.equal(loaded(torch.ones(9)), Rest()(torch.ones(9)))
except Exception as error:
    print(f"still there: {type(error).__name__}:", str(error).splitlines()[0])
else:
    print("repaired: saved, loaded and run" if same else "still there: the loaded program differs")
