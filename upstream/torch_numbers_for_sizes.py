"""Functions of torch that take a number where they could take a size make the size a constant.

Where: torch.export (functions in C++ whose schema has `int`)
Fails with: torch 2.13.0, 2.15.0
Thread: none known
In onlooker: `repairs.numbers.sized_operators`
"""

import torch


class With(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


functions = {
    "linspace": lambda x: x + torch.linspace(0, 1, x.shape[0]),
    "fft.fftfreq": lambda x: x + torch.fft.fftfreq(x.shape[0]),
    "one_hot": lambda x: torch.nn.functional.one_hot(torch.arange(3), x.shape[0]) * x,
    "max_pool1d": lambda x: torch.nn.functional.max_pool1d(x[None], 2),
}

constant = []
for name, function in functions.items():
    try:
        program = torch.export.export(
            With(function), (torch.ones(8),), dynamic_shapes=({0: torch.export.Dim.AUTO},)
        )
    except Exception as error:
        constant.append(f"{name} ({type(error).__name__})")
        continue
    (given,) = [node for node in program.graph.nodes if node.op == "placeholder"]
    if str(given.meta["val"].shape[0]).isdigit():
        constant.append(name)
print(f"still there: {', '.join(constant)}" if constant else "repaired: all of them keep the size")
