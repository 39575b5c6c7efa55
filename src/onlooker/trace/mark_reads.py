"""The marks of tensors that the Python of a model reads in a trace: whether gradients are recorded,
where a tensor lies in memory, whose view it is, and what attributes the caller gave it. Settings of
torch that the model asks for, as the default dtype, are marks of a call too. Whether a result
records gradients follows from the block around the call as well as from the inputs.

A graph has one answer to each of them, that of its example: a contiguous tensor of its own, without
gradients. So a graph whose model reads such a mark serves only tensors that have the same. A mark
that nothing reads is free. Reads of torch's own code count for nothing: an operator does the same
for any tensor, ``as_strided`` excepted. So do marks of parameters, which are those of the model.
"""

from __future__ import annotations

import contextlib
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch

from ..core.marks import (
    ATTRIBUTES,
    AUTOCASTS,
    GRADIENTS,
    INFERENCE,
    MEMORY,
    RECORDED,
    SETTINGS,
    UNRECORDED,
    WRITES,
    asked_mark,
    autocast_mark,
    setting_mark,
)
from ..core.structure import Structure
from ..core.surroundings import Autocast
from ..model_source.frames import frame_of_model, is_own_code, reading_frame
from ..model_source.lines import line_of
from ..observing.surroundings import autocast_state
from ..patches.swap import swapped
from ..pytrees.layers import classes_of_caches
from ..repairs.numbers.size_ints import files_of
from ..repairs.trace_mode import Reader
from ..torch_internals.tensor_marks import (
    base_of_tensor,
    is_view,
    memory_of,
    version_of_tensor,
)

__all__ = ["CacheReads", "MarkReads"]


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
        torch.is_conj,
        torch.is_neg,
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
    **dict.fromkeys((torch.Tensor.is_inference, torch.is_inference), INFERENCE),
    version_of_tensor: WRITES,
}


_CONTIGUOUS = torch.Tensor.contiguous
#: functions that ask for what only a backward of the model's own, or the model itself, has given
_OF_OWN_GRADIENTS = frozenset({_GRAD, torch.Tensor.requires_grad_})
_ASKS_GRAD = torch.is_grad_enabled
_INFERENCE_MODE = "is_inference_mode_enabled"
_FUNCTIONS = (FunctionType, BuiltinFunctionType)


class MarkReads(Reader):
    """Inside the block every read of a mark by the model is noted: ``found`` has the line of the
    first one of each kind.

    An attribute that a tensor lacks, as the tensors of a trace do, is asked of ``__getattr__``.
    Gradients of a result are those of the inputs, in a call that is recorded, or is not, as the one of
    the trace. Where a result lies in memory is not asked here: only reads of the ``inputs``, and of their
    views, count. The files of the ``model`` may have functions of torch by a name of their own. ``autocast`` is
    what the calls were made in.
    """

    functions = frozenset((*_KINDS, _CONTIGUOUS))

    def __init__(
        self, inputs: Mapping[Any, Any], model: Any = None, autocast: Iterable[Autocast] = ()
    ) -> None:
        self.found: dict[str, str] = {}
        #: the inputs whose memory contiguous() was given, and gave back, with the line of the model
        self.given_back: dict[Any, str] = {}
        self._model = model
        self._casts = {one.device: one.dtype for one in autocast}
        named = {name: one for name, one in inputs.items() if isinstance(one, torch.Tensor)}
        self._inputs = [*named.values()]
        self._memory_by_name = {name: memory_of(one) for name, one in named.items()}
        self._memory = set(self._memory_by_name.values()) - {None}

    def on_call(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Notes the line of the model that reads a mark."""
        if func is _CONTIGUOUS:
            result = func(*args, **kwargs)
            memory, frame = memory_of(result), frame_of_model()
            if memory in self._memory and frame is not None:
                for name, own in self._memory_by_name.items():
                    if own == memory:
                        self.given_back.setdefault(name, line_of(frame))
            return result
        kinds = [kind for kind in self._kinds(func, *args, **kwargs) if kind not in self.found]
        if kinds:
            frame = frame_of_model() if func in _READING_MEMORY else reading_frame(2, func)
            if frame is not None:
                self.found.update(dict.fromkeys(kinds, line_of(frame)))
        return func(*args, **kwargs)

    def _kinds(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Iterator[str]:
        """Yields the marks that a function reads: those of a result depend on the block around it."""
        kind, tensor = _KINDS[func], next(iter((*args, *kwargs.values())))
        if self._is_of_call(func, *args, **kwargs):
            yield kind
        is_result = not any(tensor is one for one in self._inputs)
        if not is_result or isinstance(tensor, torch.nn.Parameter):
            return
        if kind == INFERENCE:
            yield setting_mark(_INFERENCE_MODE, torch.is_inference_mode_enabled())
        if kind == GRADIENTS and func not in _OF_OWN_GRADIENTS:
            yield from self._recording(_ASKS_GRAD())

    def _recording(self, now: bool) -> Iterator[str]:
        """Yields the mark of a block that records gradients, or of one that does not; nothing inside a
        block of the model's own.
        """
        if now == self._is_recorded:
            yield RECORDED if now else UNRECORDED

    def _is_of_call(self, func: Callable[..., Any], tensor: Any, *rest: Any, **named: Any) -> bool:
        if isinstance(tensor, torch.nn.Parameter):
            return False
        if func == _GRAD:  # that of a tensor of the model's own comes from its own backward
            return any(tensor is one for one in self._inputs)
        if func is torch.Tensor.requires_grad_ and all((*rest, *named.values())):
            return False  # it asks for gradients, whatever was there
        return _KINDS[func] == GRADIENTS or memory_of(tensor) in self._memory

    def __enter__(self) -> MarkReads:
        self._is_recorded = _ASKS_GRAD()

        def noting() -> bool:
            frame = reading_frame(2)
            is_recorded = _ASKS_GRAD()
            if frame is not None:
                for mark in self._recording(is_recorded):
                    self.found.setdefault(mark, line_of(frame))
            return is_recorded

        def lacking(tensor: torch.Tensor, name: str) -> Any:
            is_input = any(tensor is one for one in self._inputs)
            frame = reading_frame(2) if is_input else None
            if frame is not None:
                self.found.setdefault(ATTRIBUTES, line_of(frame))
            return object.__getattribute__(tensor, name)  # raises what it raised

        self._swap = contextlib.ExitStack()
        self._swap.enter_context(swapped(torch.Tensor, "__getattr__", lacking))
        told = {name: self._noting_setting(name) for name in SETTINGS}
        told.update((name, self._noting_autocast(name, of)) for name, of in AUTOCASTS.items())
        told["is_grad_enabled"] = noting
        instead = {}
        for name, function in told.items():
            module, _, last = name.rpartition(".")
            owner: Any = operator.attrgetter(module)(torch) if module else torch
            instead[getattr(owner, last)] = function
            self._swap.enter_context(swapped(owner, last, function))
        for file in files_of(self._model):
            for name, value in list(vars(file).items()):
                if isinstance(value, _FUNCTIONS) and value in instead:
                    self._swap.enter_context(swapped(file, name, instead[value]))
        return self

    def _noting_setting(self, name: str) -> Callable[[], Any]:
        tells = operator.attrgetter(name)(torch)

        def noting() -> Any:
            frame = reading_frame(2)
            value = tells()
            if frame is not None:
                self.found.setdefault(setting_mark(name, value), line_of(frame))
            return value

        return noting

    def _noting_autocast(self, name: str, of: str | None) -> Callable[..., Any]:
        """The function of torch of this name, which tells the autocast of a kind of devices; nothing is
        noted inside a block of the model's own, which has another one.
        """
        tells = getattr(torch, name)

        def noting(*args: Any, **kwargs: Any) -> Any:
            frame = None if is_own_code(sys._getframe(1).f_code.co_filename) else reading_frame(2)
            device = of or str(next(iter((*args, *kwargs.values())), "cuda"))
            state = "" if frame is None else autocast_state(device)
            if frame is not None and state == self._casts.get(device, "off"):
                self.found.setdefault(autocast_mark(device, state), line_of(frame))
            return tells(*args, **kwargs)

        return noting

    def __exit__(self, *error: Any) -> None:
        self._swap.close()


class CacheReads(Reader):
    """Inside the block every attribute is noted that the model asks the caches of a structure for, or their layers,
    and that they lack: ``found`` has the line of the first time, by the mark.

    >>> CacheReads(Structure()).found
    {}
    """

    functions = frozenset()

    def __init__(self, structure: Structure) -> None:
        self.found: dict[str, str] = {}
        self._classes = classes_of_caches(structure)

    def __enter__(self) -> CacheReads:
        self._swap = contextlib.ExitStack()
        for cls in self._classes:
            self._swap.enter_context(swapped(cls, "__getattr__", self._lacking_of(cls)))
        return self

    def _lacking_of(self, cls: Any) -> Callable[[Any, str], Any]:
        """The method that a cache is asked by for what it lacks; its class may have one of its own."""
        before = getattr(cls, "__getattr__", object.__getattribute__)

        def lacking(cache: Any, name: str) -> Any:
            frame = sys._getframe(1)
            if not is_own_code(frame.f_code.co_filename):  # a model may have no file
                self.found.setdefault(asked_mark(name), line_of(frame))
            return before(cache, name)

        return lacking

    def __exit__(self, *error: Any) -> None:
        self._swap.close()
