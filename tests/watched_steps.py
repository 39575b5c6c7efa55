"""Models with a loop over steps, watched with two lengths and called with others."""

from __future__ import annotations

import torch
from torch import nn

from onlooker import InputObserver, Program


def watched(model: nn.Module) -> Program:
    """Returns the program of a model that was watched with 7 steps, and with 12 and another batch."""
    torch.manual_seed(0)
    observer = InputObserver()
    with observer(model), torch.no_grad():
        for shape in ((1, 7, 4), (2, 12, 4)):
            model(torch.randn(shape))
    return observer.export()


def close(program: Program, model: nn.Module, *shape: int, atol: float = 1e-5) -> None:
    """Asserts that the program gives what the model gives for an input of a shape."""
    torch.manual_seed(1)
    x = torch.randn(shape)
    with torch.no_grad():
        torch.testing.assert_close(program(x), model(x), atol=atol, rtol=atol)
