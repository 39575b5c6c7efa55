"""Tensors that a model makes of numbers alone: their values are those of every call.

``torch.linspace(0, 1, 5)`` has the same values in each call, and so has what is computed of it. A trace knows the value
of a tensor with one number at most, so that it refuses ``if (times[1:] > times[:-1]).all():``, or leaves the number of
steps of a solver to the program. Inside the block such a tensor has its values beside it, and Python reads those::

    times = torch.linspace(0, 1, 5)           made of numbers: [0, 0.25, 0.5, 0.75, 1]
    assert (times.diff() > 0).all()           computed of it: True
    for step in times.diff().tolist():        0.25 in each step

What is computed of a constant by an operator whose result has as many rows as values say, as ``torch.nonzero``, is
a constant too. A constant that is written to, or drawn, is none.

Upstream: ``CONSTANT_NUMEL_LIMIT`` of
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_subclasses/fake_tensor.py
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy
import torch

from ..torch_internals.fake_tensors import FakeTensor
from ..torch_internals.modes import WithoutFunctions, without_dispatch_modes
from ..torch_internals.trees import tree_leaves, tree_map_only
from .live_part import is_write
from .repair import Repair
from .trace_mode import Reader

__all__ = ["CONSTANT_TENSORS", "ConstantTensors"]

_Function = Callable[..., Any]
#: what makes a tensor of numbers
_MAKERS = frozenset(
    {
        *(torch.tensor, torch.as_tensor, torch.scalar_tensor, torch.from_numpy),
        *(torch.arange, torch.linspace, torch.logspace, torch.eye),
        *(torch.zeros, torch.ones, torch.full),
        *(torch.tril_indices, torch.triu_indices, torch.hann_window, torch.hamming_window),
    }
)
#: what Python reads of the values of a tensor
_READS = frozenset(
    {
        *(torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.numpy),
        *(torch.Tensor.__bool__, torch.Tensor.__int__, torch.Tensor.__float__),
        *(torch.Tensor.__index__, torch.Tensor.__array__),
    }
)
_PLAIN = frozenset(
    {
        *(bool, int, float, complex, str, type(None), type(...)),
        *(torch.dtype, torch.device, torch.layout, torch.memory_format),
    }
)
#: the attribute of a tensor of a trace that has its values, and its version
_CONSTANT = "_onlooker_constant"
#: larger tensors are not kept
_MOST_NUMBERS = 1 << 14


class ConstantTensors(Reader):
    """Inside the block Python reads the values of constants; ``is_rolling`` is True within the steps of a loop, of
    which each may have a constant of its own.
    """

    def __init__(self, is_rolling: Callable[[], bool]) -> None:
        self._is_rolling, self._has_some = is_rolling, False

    def wants(self, func: _Function) -> bool:
        """True for what makes tensors, and for all functions once there is a constant."""
        return (self._has_some or func in _MAKERS) and not self._is_rolling()

    def on_call(self, func: _Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Gives the values of constants, and keeps those of what is computed of constants alone."""
        given = _values_given(func, args, kwargs)
        if given is not None and func in _READS:
            return _read_alone(_computed(func, *given))
        result = func(*args, **kwargs)
        if given is None or is_write(func) or "out" in kwargs:
            return result
        parts = list(_tensors_of(result))
        if not parts or not all(map(_is_small, parts)):
            return result
        values = _computed(func, *given)
        wholes = list(_tensors_of(values))
        if len(wholes) != len(parts):
            return result
        if not all(map(_is_alike, parts, wholes)):
            if type(result) is not FakeTensor or not _is_small(values):
                return result
            result = torch.tensor(values.tolist(), dtype=values.dtype, device=values.device)
            parts = [result]
        for part, whole in zip(parts, wholes, strict=True):
            with WithoutFunctions():
                if not part.is_inference():  # torch counts no writes to those
                    setattr(part, _CONSTANT, (whole, part._version))
                    self._has_some = True
        return result


def _values_given(
    func: _Function, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Any, Any] | None:
    """The arguments with the values of constants in their places; None where one of them is no constant, as a size is
    none, and the list of a size.
    """
    leaves = tree_leaves((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if not tensors and func not in _MAKERS:
        return None
    if any(_value_of(tensor) is None for tensor in tensors):
        return None
    if not all(map(_is_plain, leaves)):
        return None
    found: tuple[Any, Any] = tree_map_only(torch.Tensor, _value_of, (args, kwargs))
    return found


def _is_plain(leaf: Any) -> bool:
    """True for a tensor, a number and what else has no size in it; what stands for a number in a trace is of a class of
    its own.
    """
    if isinstance(leaf, slice):
        return all(map(_is_plain, (leaf.start, leaf.stop, leaf.step)))
    if type(leaf) is numpy.ndarray:
        return bool(leaf.dtype != object)
    return isinstance(leaf, torch.Tensor) or type(leaf) in _PLAIN


def _value_of(tensor: Any) -> torch.Tensor | None:
    value, version = vars(tensor).get(_CONSTANT, (None, 0))
    with WithoutFunctions():
        return value if value is not None and version == tensor._version else None


def _computed(func: _Function, args: Any, kwargs: Any) -> Any:
    """What a function gives for plain values; None where it draws numbers, or where torch cannot."""
    drawn = torch.random.get_rng_state()
    with without_dispatch_modes(), WithoutFunctions(), torch.no_grad():
        found = func(*args, **kwargs)
        if not torch.equal(drawn, torch.random.get_rng_state()):
            torch.random.set_rng_state(drawn)
            return None
    return found


def _read_alone(value: Any) -> Any:
    """What Python reads; an array is one that is not written to, since the tensor of the graph would not change."""
    if isinstance(value, numpy.ndarray):
        value = value.copy()
        value.flags.writeable = False
    return value


def _tensors_of(result: Any) -> Iterator[Any]:
    several = result if isinstance(result, (tuple, list)) else (result,)
    yield from (one for one in several if isinstance(one, torch.Tensor))


def _is_small(tensor: torch.Tensor) -> bool:
    """True for few numbers on the processor; the trace may not know how many there are."""
    with WithoutFunctions():  # the model reads none of these sizes
        sizes = [size for size in tensor.shape if type(size) is int]
        return tensor.device.type == "cpu" and math.prod(sizes) <= _MOST_NUMBERS


def _is_alike(part: torch.Tensor, whole: torch.Tensor) -> bool:
    with WithoutFunctions():
        sizes, others = tuple(part.shape), tuple(whole.shape)
    return type(part) is FakeTensor and all(type(size) is int for size in sizes) and sizes == others


CONSTANT_TENSORS = Repair(
    "constant tensors",
    "A tensor that a model makes of numbers alone, as `torch.linspace(0, 1, 5)`, has the same values in each call, but"
    " a trace knows them of one number at most: the times of a solver decide nothing in Python. The values are kept"
    " beside the tensor, and Python reads those.",
    until="upstream/torch_constant_tensors.py",
    link="https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_subclasses/fake_tensor.py",
    always=True,
)
