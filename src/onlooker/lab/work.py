"""The work of one run of a model, counted without running it and without a clock."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from ..core.path import Path
from ..proofs.operators import facts_of
from .recorder import CountedOperators

__all__ = ["MOST_WORK", "CountedWork", "MeasuredWork", "parameters_of", "rows_of", "work_of"]

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


def parameters_of(model: Any) -> int:
    """The number of numbers in all parameters; 0 for what is no module."""
    if not isinstance(model, torch.nn.Module):
        return 0
    return sum(parameter.numel() for parameter in model.parameters())


def rows_of(values: Mapping[Path, Any]) -> int:
    """The rows of the largest argument, of those that count; 1 without any."""
    return max(map(_rows, _that_count(values)), default=1)


def _that_count(values: Mapping[Path, Any]) -> list[torch.Tensor]:
    """The tensors among the arguments that count."""
    arguments = [value for path, value in values.items() if len(path.entries) <= _DEEPEST]
    return [value for value in arguments if isinstance(value, torch.Tensor)]


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

        #: the numbers that operators gave
        self.numbers: int = 0

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
            self.numbers += _numbers_of(result)
            self.of_numbers += _OF_NUMBER * _numbers_of(result)
        return result


class MeasuredWork:
    """The work of any run of a model: what :func:`work_of` says, or what the run that was :meth:`counted` did
    for each number of its largest argument, where that is more. A convolution uses a parameter at
    each place of an image or a sound.

    >>> from onlooker.core.path import Name
    >>> model, work = torch.nn.Conv1d(1, 1, 3, bias=False), MeasuredWork()
    >>> def values(length: int) -> dict[Path, torch.Tensor]:
    ...     return {Path((Name("input"),)): torch.zeros(1, 1, length)}
    >>> before = work.of(model, values(1000))
    >>> with work.counted(values(100)):
    ...     _ = model(torch.zeros(1, 1, 100))
    >>> before, work.of(model, values(1000)) > 1000 * 3
    (3, True)
    """

    def __init__(self) -> None:
        self._is_counted = False
        self._per_element = self._numbers_per_element = 0.0

    def of(self, model: Any, values: Mapping[Path, Any]) -> int:
        """The multiply-adds of a run."""
        return max(work_of(model, values), int(self._per_element * _elements_of(values)))

    def is_dear(self, model: Any, values: Mapping[Path, Any]) -> bool:
        """True for a run that takes longer than one without floats."""
        return self.of(model, values) > _WITHOUT_FLOATS

    def numbers_of(self, values: Mapping[Path, Any]) -> int:
        """The numbers that the operators of a run give, as far as a run was counted."""
        return int(self._numbers_per_element * _elements_of(values))

    @contextlib.contextmanager
    def counted(self, values: Mapping[Path, Any]) -> Iterator[None]:
        """Inside the block the model runs; the first such run is counted."""
        if self._is_counted:
            yield
            return
        with CountedWork() as run:
            yield
        self._is_counted = True
        self._per_element = run.of_numbers / _elements_of(values)
        self._numbers_per_element = run.numbers / _elements_of(values)


def _elements_of(values: Mapping[Path, Any]) -> int:
    """The numbers of the largest argument, of those that count; at least 1."""
    return max([1, *(tensor.numel() for tensor in _that_count(values))])


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
