"""Floats of Python as inputs of a graph: tensors of float64 without dimensions, for a program takes
no float.

In a trace the model gets the number that the tensor holds, ``tensor.item()``. torch knows only that
it is a float of Python, and not its value: ``x * t``, ``torch.full((2,), t)`` and ``torch.lerp(x,
y, t)`` have the dtype and the value that they have for a float, since the exported graph hands the
number to the same operators. Python code that decides by the value (``if t > 0.5``,
``range(int(t))``, ``math.exp(t)``, a key of a dict) ends the trace with an error.

A tensor instead of the number would do other things: a tensor of ints times a tensor of float64 is
float64, and times a float it is float32.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ...core.plan import Plan
from ..repair import Repair
from .size_ints import Float, builtins_swapped

__all__ = ["FLOAT_TENSORS", "floats_stay_numbers", "with_float_tensors"]


@contextlib.contextmanager
def floats_stay_numbers(model: Any, plan: Plan) -> Iterator[None]:
    """Swaps ``float`` in the files of a model, where a plan has a float as an input.

    There ``isinstance(t, float)`` is true in the trace as it is outside, and ``float(t)`` is ``t``.
    A file that has a ``float`` of its own keeps it.
    """
    model = model if any(leaf.is_float for leaf in plan.inputs) else None
    with builtins_swapped(model, {"float": Float}):
        yield


def with_float_tensors(inputs: Sequence[Any]) -> Sequence[Any]:
    """The inputs of a graph with a tensor for every float.

    >>> with_float_tensors([0.1, 2])
    [tensor(0.1000, dtype=torch.float64), 2]
    """
    if not any(issubclass(kind, float) for kind in set(map(type, inputs))):
        return inputs
    return [
        torch.tensor(float(v), dtype=torch.float64) if isinstance(v, float) else v for v in inputs
    ]


FLOAT_TENSORS = Repair(
    "floats as inputs",
    "A program takes no float of Python. It takes a tensor of float64, and the model gets the"
    " number in it; in the files of the model ``float`` leaves it as it is.",
    until="tests/graphs/test_float_inputs.py",
    always=True,
    block=lambda setup: floats_stay_numbers(setup.model, setup.plan),
)
