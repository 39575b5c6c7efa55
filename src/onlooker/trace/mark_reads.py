"""The marks of tensors that the Python of a model reads in a trace: whether gradients are recorded,
where a tensor lies in memory, whose view it is, and what attributes the caller gave it. Settings of
torch that the model asks for, as the default dtype, are marks of a call too.

A graph has one answer to each of them, that of its example: a contiguous tensor of its own, without
gradients. So a graph whose model reads such a mark serves only tensors that have the same. A mark
that nothing reads is free. Reads of torch's own code count for nothing: an operator does the same
for any tensor, ``as_strided`` excepted. So do marks of parameters, which are those of the model.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ..core.marks import (
    ATTRIBUTES,
    GRADIENTS,
    INFERENCE,
    MEMORY,
    SETTINGS,
    UNRECORDED,
    WRITES,
    setting_mark,
)
from ..model_source.frames import frame_of_model, reading_frame
from ..model_source.lines import line_of
from ..patches.swap import swapped
from ..repairs.trace_mode import Reader
from ..torch_internals.tensor_marks import (
    base_of_tensor,
    is_view,
    memory_of,
    version_of_tensor,
)

__all__ = ["MarkReads"]


def _getter(name: str) -> Any:
    return getattr(torch.Tensor, name).__get__


_GRAD = _getter("grad")
_OF_GRADIENTS = frozenset(
    {
        _GRAD,
        *map(_getter, ("requires_grad", "is_leaf", "grad_fn", "retains_grad")),
        _getter("_backward_hooks"),
        torch.Tensor.requires_grad_,
    }
)
_OF_MEMORY = frozenset(
    {
        base_of_tensor,
        is_view,
        torch.Tensor.data_ptr,
        torch.Tensor.is_conj,
        torch.Tensor.is_contiguous,
        torch.Tensor.is_neg,
        torch.Tensor.is_shared,
        torch.Tensor.storage_offset,
        torch.Tensor.stride,
        torch.Tensor.untyped_storage,
    }
)
#: operators whose result depends on where a tensor lies in memory, whoever calls them
_READING_MEMORY: frozenset[Callable[..., Any]] = frozenset(
    {
        torch.as_strided,
        torch.as_strided_copy,
        torch.as_strided_scatter,
        torch.Tensor.as_strided,
        torch.Tensor.as_strided_scatter,
    }
)
#: the kind of mark that each function reads
_KINDS: dict[Callable[..., Any], str] = {
    **dict.fromkeys(_OF_GRADIENTS, GRADIENTS),
    **dict.fromkeys((*_OF_MEMORY, *_READING_MEMORY), MEMORY),
    torch.Tensor.is_inference: INFERENCE,
    version_of_tensor: WRITES,
}


class MarkReads(Reader):
    """Inside the block every read of a mark by the model is noted: ``found`` has the line of the
    first one of each kind.

    An attribute that a tensor lacks, as the tensors of a trace do, is asked of ``__getattr__``.
    Gradients of a result are those of the inputs. Where a result lies in memory is not asked here:
    only reads of the ``inputs``, and of their views, count.
    """

    functions = frozenset(_KINDS)

    def __init__(self, inputs: Iterable[Any]) -> None:
        self.found: dict[str, str] = {}
        self._inputs = [value for value in inputs if isinstance(value, torch.Tensor)]
        self._memory = set(map(memory_of, self._inputs)) - {None}

    def on_call(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Notes the line of the model that reads a mark."""
        kind = _KINDS[func]
        if kind not in self.found and self._is_of_call(func, *args, **kwargs):
            frame = frame_of_model() if func in _READING_MEMORY else reading_frame(2, func)
            if frame is not None:
                self.found[kind] = line_of(frame)
        return func(*args, **kwargs)

    def _is_of_call(self, func: Callable[..., Any], tensor: Any, *rest: Any, **named: Any) -> bool:
        if isinstance(tensor, torch.nn.Parameter):
            return False
        if func == _GRAD:  # that of a tensor of the model's own comes from its own backward
            return any(tensor is one for one in self._inputs)
        if func is torch.Tensor.requires_grad_ and all((*rest, *named.values())):
            return False  # it asks for gradients, whatever was there
        return _KINDS[func] == GRADIENTS or memory_of(tensor) in self._memory

    def __enter__(self) -> MarkReads:
        asks = torch.is_grad_enabled

        def noting() -> bool:
            frame = reading_frame(2)
            is_recorded = asks()
            if frame is not None and not is_recorded:
                self.found.setdefault(UNRECORDED, line_of(frame))
            return is_recorded

        def lacking(tensor: torch.Tensor, name: str) -> Any:
            is_input = any(tensor is one for one in self._inputs)
            frame = reading_frame(2) if is_input else None
            if frame is not None:
                self.found.setdefault(ATTRIBUTES, line_of(frame))
            return object.__getattribute__(tensor, name)  # raises what it raised

        self._swap = contextlib.ExitStack()
        self._swap.enter_context(swapped(torch, "is_grad_enabled", noting))
        self._swap.enter_context(swapped(torch.Tensor, "__getattr__", lacking))
        for name in SETTINGS:
            self._swap.enter_context(swapped(torch, name, self._noting_setting(name)))
        return self

    def _noting_setting(self, name: str) -> Callable[[], Any]:
        tells = getattr(torch, name)

        def noting() -> Any:
            frame = reading_frame(2)
            value = tells()
            if frame is not None:
                self.found.setdefault(setting_mark(name, value), line_of(frame))
            return value

        return noting

    def __exit__(self, *error: Any) -> None:
        self._swap.close()
