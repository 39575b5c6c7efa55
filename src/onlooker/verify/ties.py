"""Equal scores have no order: a model that takes the greatest ones, run with another choice among
equal ones.

torch says nothing of which of several equal elements ``topk`` and ``sort`` put first, and runtimes
choose otherwise: ONNX Runtime takes the one with the lower index. Detectors and samplers meet it
where values are extreme, and a sigmoid is 1 everywhere. A result that is that of the model with the
lower index first is a result of the model.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from ..repairs.trace_mode import Reader, reading

__all__ = ["lower_index_first"]


def _topk(
    value: torch.Tensor,
    k: int,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,
) -> Any:
    ordered = torch.sort(value, dim=dim, descending=largest, stable=True)
    values, places = (part.narrow(dim, 0, k) for part in ordered)
    return torch.return_types.topk((values, places))


def _sort(value: torch.Tensor, dim: int = -1, descending: bool = False, stable: bool = True) -> Any:
    return torch.sort(value, dim=dim, descending=descending, stable=True)


def _argsort(
    value: torch.Tensor, dim: int = -1, descending: bool = False, stable: bool = True
) -> torch.Tensor:
    return torch.argsort(value, dim=dim, descending=descending, stable=True)


_STABLE: Mapping[Any, Callable[..., Any]] = {
    torch.topk: _topk,
    torch.Tensor.topk: _topk,
    torch.sort: _sort,
    torch.Tensor.sort: _sort,
    torch.argsort: _argsort,
    torch.Tensor.argsort: _argsort,
}


class _LowerIndexFirst(Reader):
    """Runs the functions that order elements so that equal ones stay in their order."""

    functions = frozenset(_STABLE)

    def __init__(self) -> None:
        self.calls = 0

    def on_call(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Calls the form of a function that keeps the order of equal elements."""
        self.calls += 1
        return _STABLE[func](*args, **kwargs)


@contextlib.contextmanager
def lower_index_first() -> Iterator[_LowerIndexFirst]:
    """Inside the block torch puts the lower index first among equal elements; ``calls`` is how often
    something was ordered.

    >>> with lower_index_first() as ordered:
    ...     torch.zeros(4).topk(2).indices, ordered.calls
    (tensor([0, 1]), 1)
    """
    ordered = _LowerIndexFirst()
    with reading(ordered):
        yield ordered
