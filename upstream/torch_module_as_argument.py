"""An argument that is a module is a constant of the program, without a word.

The program then answers for the argument of the example, whatever it is given.

Where: torch.export
Fails with: torch 2.13.0, 2.15.0
Thread: https://github.com/pytorch/pytorch/pull/143925 (module inputs, where their class is registered)
In onlooker: an argument is opened by what it holds, also where its class is a module
"""

import torch


class Cache(torch.nn.Module):
    def __init__(self, value):
        super().__init__()
        self.value = torch.tensor([value])


class Reads(torch.nn.Module):
    def forward(self, x, cache):
        return x + cache.value


try:
    program = torch.export.export(Reads(), (torch.zeros(1), Cache(1.0)), strict=False)
    given = program.module()(torch.zeros(1), Cache(100.0)).item()
except Exception as error:
    print(f"repaired: refused with {type(error).__name__}")
else:
    if given == 100.0:
        print("repaired: the given cache is read")
    else:
        print(f"still there: 100.0 is expected, the program gives {given}")
