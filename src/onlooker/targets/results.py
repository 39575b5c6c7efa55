"""The results of a runtime as the model gives them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

__all__ = ["Runner", "as_the_model_gives", "in_plain_memory"]

#: takes the inputs of a graph in their order, and gives its outputs
Runner = Callable[[Sequence[Any]], list[Any]]


def as_the_model_gives(
    start: Runner, are_ints: Sequence[bool], are_floats: Sequence[bool]
) -> Runner:
    """A function that does what ``start`` does, and gives ints and floats of Python where the model
    does, and tensors on the device of the inputs.

    ``start`` gives tensors on the CPU, or where the inputs are. What it raises is a RuntimeError, as
    torch raises for a call
    that a graph refuses.
    """
    ints = tuple(position for position, is_int in enumerate(are_ints) if is_int)
    floats = tuple(position for position, is_float in enumerate(are_floats) if is_float)

    def run(inputs: Sequence[Any]) -> list[Any]:
        try:
            results = start(inputs)
        except Exception as error:
            raise RuntimeError(str(error)) from error
        device = _device(inputs)
        if device is not None:
            results = [
                result.to(device) if isinstance(result, torch.Tensor) else result
                for result in results
            ]
        for position in ints:
            results[position] = int(results[position])
        for position in floats:
            results[position] = float(results[position])
        return results

    return run


def _device(inputs: Sequence[Any]) -> torch.device | None:
    """The device of the results, when it is not the CPU."""
    for value in inputs:
        if isinstance(value, torch.Tensor) and not value.is_cpu:
            return value.device
    return None


def in_plain_memory(value: Any) -> torch.Tensor:
    """Returns an input as a tensor on the CPU whose numbers stand in memory in their order."""
    tensor = value if isinstance(value, torch.Tensor) else torch.tensor(value)
    return tensor.detach().cpu().resolve_neg().contiguous()
