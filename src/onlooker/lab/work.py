"""The work of one run of a model, counted without running it and without a clock."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from ..core.path import Path
from ..proofs.operators import facts_of
from .recorder import CountedOperators

__all__ = ["MOST_WORK", "CountedWork", "is_dear", "parameters_of", "rows_of", "work_of"]

#: multiply-adds of one run above which shapes are probed with fake tensors: some seconds on a core
#: of a laptop
MOST_WORK = 100_000_000_000

#: multiply-adds that take about as long as calling an operator on a core of a laptop (5 us), and as
#: long as reading and writing a number of its result (0.6 ns)
_OF_OPERATOR, _OF_NUMBER = 200_000, 25

#: multiply-adds that take about as long as a run without floats (0.1 s)
_WITHOUT_FLOATS = 6_000_000_000

#: how deep an argument stands that counts: ``x`` and ``images[0]`` do, the tensors of a cache do
#: not
_DEEPEST = 2


def work_of(model: Any, values: Mapping[Path, Any]) -> int:
    """An estimate of the multiply-adds of one run: the parameters, times the rows of the largest
    argument.

    The rows of ids are all of their elements, those of other tensors the vectors along their last
    dimension. A transformer reads its parameters once for each token, so the estimate is close for
    it. Images have one row per line and channel, about as many as a vision transformer has patches.

    >>> from onlooker.core.path import Name
    >>> work_of(torch.nn.Linear(4, 2, bias=False), {Path((Name("input"),)): torch.zeros(3, 4)})
    24
    """
    return parameters_of(model) * rows_of(values)


def is_dear(model: Any, values: Mapping[Path, Any]) -> bool:
    """True for a run that takes longer than one without floats.

    >>> from onlooker.core.path import Name
    >>> is_dear(torch.nn.Linear(4, 2), {Path((Name("input"),)): torch.zeros(3, 4)})
    False
    """
    return work_of(model, values) > _WITHOUT_FLOATS


def parameters_of(model: Any) -> int:
    """The number of numbers in all parameters; 0 for what is no module."""
    if not isinstance(model, torch.nn.Module):
        return 0
    return sum(parameter.numel() for parameter in model.parameters())


def rows_of(values: Mapping[Path, Any]) -> int:
    """The rows of the largest argument, of those that count; 1 without any."""
    arguments = [value for path, value in values.items() if len(path.entries) <= _DEEPEST]
    tensors = [value for value in arguments if isinstance(value, torch.Tensor)]
    return max(map(_rows, tensors), default=1)


def _rows(tensor: torch.Tensor) -> int:
    """The vectors of a tensor: its elements where they are ids."""
    is_vectors = tensor.dtype.is_floating_point or tensor.dtype.is_complex
    if is_vectors and tensor.ndim:
        return tensor.numel() // max(tensor.shape[-1], 1)
    return tensor.numel()


class CountedWork(CountedOperators):  # type: ignore[no-untyped-call]  # torch has no types here
    """Inside the block the work of all operators that run is counted, in multiply-adds.

    Calling an operator and writing its result count as the multiply-adds that take as long, so that
    a loop of many small operators is no less than it costs.

    >>> with CountedWork() as run:
    ...     _ = torch.ones(1000, 500) @ torch.ones(500, 2000)
    >>> run.count, run.of_calls, run.of_numbers > 1000 * 500 * 2000
    (3, 600000, True)
    """

    def __init__(self) -> None:
        super().__init__()
        self.of_numbers: int = 0

    @property
    def of_calls(self) -> int:
        """The cost of calling the operators, whatever the sizes of their tensors."""
        return _OF_OPERATOR * self.count

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs the operator and counts its work."""
        result = super().run(func, args, kwargs)
        self.of_numbers += _multiply_adds(func, args, kwargs, result)
        facts = facts_of(func)
        if not facts.shared or facts.written:
            self.of_numbers += _OF_NUMBER * _numbers_of(result)
        return result


def _multiply_adds(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
    """Counts the multiply-adds of operators that torch can count: products, convolutions,
    attention.
    """
    flops = flop_registry.get(getattr(func, "overloadpacket", None))
    if flops is None:
        return 0
    with contextlib.suppress(Exception):  # torch's functions know only the usual arguments
        return int(flops(*args, **kwargs, out_val=result)) // 2
    return 0


def _numbers_of(result: Any) -> int:
    """The numbers in the tensors that an operator gives."""
    tensors = result if isinstance(result, (list, tuple)) else [result]
    return sum(tensor.numel() for tensor in tensors if isinstance(tensor, torch.Tensor))
