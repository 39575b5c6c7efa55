"""Tensors that are made of others in a way that no trace sees: of a list of them, and by ``x.data``.

``torch.tensor([x.sum(), x.mean()])`` reads the value of each tensor, and a trace has none: it ends with an
error about data that is not allocated. The same tensor is ``torch.stack`` of these, each as a number of the
dtype of the list. Here it is made so, also with numbers and sizes among the tensors, and in lists of lists.

``x.data`` is a tensor of the same memory that no operator gives: a trace takes it for a constant. It is
``x.detach()``, which has the memory too.

Upstream: ``infer_scalar_type`` and ``recursive_store`` of
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/csrc/utils/tensor_new.cpp
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .numbers.range_tensors import LIST_TAKERS
from .repair import Repair
from .trace_mode import Reader

__all__ = ["UNTRACED_TENSORS", "UntracedTensors"]


_DATA = torch.Tensor.data.__get__  # type: ignore[attr-defined]


class UntracedTensors(Reader):
    """Inside the block a trace sees how such tensors are made."""

    functions = (*LIST_TAKERS, torch.Tensor.new_tensor, _DATA)

    def on_call(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The tensor of a list with tensors, or of the same memory; anything else is handed on."""
        if func == _DATA:
            return args[0].detach()
        is_new = func is torch.Tensor.new_tensor
        values, about = args[is_new:], dict(kwargs)
        about.pop("requires_grad", None)
        is_list = len(values) == 1 and type(values[0]) in (list, tuple)
        leaves = list(_leaves(values[0])) if is_list else []
        if not any(isinstance(one, torch.Tensor) for one in leaves) or about.keys() - _OPTIONS:
            return func(*args, **kwargs)
        made = _each_made(values[0])
        usual = functools.reduce(torch.promote_types, (one.dtype for one in _leaves(made)))
        own = args[0] if is_new else torch.empty(0, dtype=usual)
        return _stacked(made).to(about.get("device") or own.device, about.get("dtype") or own.dtype)


_OPTIONS = frozenset({"dtype", "device"})


def _leaves(value: Any) -> Iterator[Any]:
    if type(value) in (list, tuple):
        for one in value:
            yield from _leaves(one)
    else:
        yield value


def _each_made(value: Any) -> Any:
    """The list with a tensor without dimensions for each of its values."""
    if type(value) in (list, tuple):
        return [_each_made(one) for one in value]
    if isinstance(value, torch.Tensor):
        return value if value.ndim == 0 else value.reshape(())
    is_plain = isinstance(value, (bool, int, float, complex))
    return torch.full((), value) if is_plain else torch.tensor(value)


def _stacked(made: Any) -> torch.Tensor:
    return torch.stack([_stacked(one) for one in made]) if type(made) is list else made


UNTRACED_TENSORS = Repair(
    "untraced tensors",
    "``torch.tensor([x.sum(), x.mean()])`` reads the values of tensors, which a trace does not have, and ends with an"
    " error about data that is not allocated: the tensors are stacked. ``mask.data`` is a constant of a program, which"
    " ends the trace or holds the example: it is ``mask.detach()``.",
    until="upstream/torch_tensor_of_tensors.py",
    link="https://github.com/pytorch/pytorch/blob/v2.13.0/torch/csrc/utils/tensor_new.cpp",
    always=True,
)
