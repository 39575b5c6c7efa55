"""Lists of tensors that a model gives whole to functions of torch, and whose items it never gets.

A list notes all that Python asks of it, and a reader of functions looks for its items among their arguments.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import torch

from ..model_source.frames import is_code_of_model, is_own_code
from .trace_mode import InVainError, Reader, TraceMode

__all__ = ["JoinedList", "ListReadError", "ListWatch", "noting_list"]


#: the functions that join a list of tensors, along a dimension that they get or the first one
_CAT = (torch.cat, torch.concat, torch.concatenate)
#: those that join matrices, and tensors of more dimensions, along a dimension of their own
_STACK = {torch.vstack: 0, torch.row_stack: 0, torch.hstack: 1, torch.column_stack: 1}


class ListWatch(Reader):
    """Sees a list in a run: does it go whole into functions that join it, or does anything get an item?

    The list notes all that Python asks of it; the items are looked for among the arguments of each
    function, and of each operator.
    """

    def __init__(self, values: Sequence[torch.Tensor]) -> None:
        #: the dimensions along which functions have joined the list
        self.dims: set[int] = set()
        #: True as soon as Python or a function got an item, or asked the list for anything
        self.is_opened = False
        self.is_running = False
        self._rank = values[0].ndim
        self._items = [id(value) for value in values]

    def note_reading(self) -> None:
        """Somebody asks the list for something; what looks at the result after the run is no model."""
        self.is_opened |= self.is_running

    def on_call(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Runs a function, and notes what it gets of the list."""
        if not self._joins(func, args, kwargs) and self._has(args, kwargs):
            self.note_reading()
        return func(*args, **kwargs)

    def note_operator(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Notes what an operator gets of the list: a concatenation has all items, in their order."""
        if func is torch.ops.aten.cat.default and [*map(id, args[0])] == self._items:
            return
        if self._has(args, kwargs):
            self.note_reading()

    def _joins(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """True for a call that joins the whole list and does nothing else."""
        given = dict(zip(("tensors", "dim"), args, strict=False))
        given |= {"dim" if name == "axis" else name: value for name, value in kwargs.items()}
        dim = given.pop("dim", 0) if func in _CAT else _STACK.get(func) if self._rank > 1 else None
        if type(dim) is not int or len(args) > 2 or list(given) != ["tensors"]:
            return False
        if not self._is_list(given["tensors"]):
            return False
        self.dims.add(dim % self._rank)
        return True

    def _is_list(self, value: Any) -> bool:
        return getattr(type(value), "watch", None) is self

    def _has(self, *values: Any) -> bool:
        """True where the list or an item of it is among these values, or in their lists and dicts."""
        for value in values:
            if id(value) in self._items or self._is_list(value):
                return True
            if isinstance(value, dict):
                value = tuple(value.values())
            if isinstance(value, list | tuple) and self._has(*value):
                return True
        return False


class ListReadError(InVainError):
    """A trace reads a list that is joined: no run of a call did."""

    words = "{line} is joined, and read where no watched call read it{reason}"


class JoinedList(ListWatch):
    """A list that is joined, in a trace: its one tensor is all that the list of a call has, so that a path that
    reads it is no path of the model. ``ended`` gives the error with which it ends.
    """

    def __init__(
        self, name: str, values: Sequence[torch.Tensor], ended: Callable[[], InVainError | None]
    ) -> None:
        super().__init__(values)
        self._name, self._ended = name, ended
        self.is_running = True

    def note_reading(self) -> None:
        """Ends the trace where the model asks the list for something, or a function gets more than all of it."""
        raise self._ended() or self.failed(ListReadError(self._name))

    def note_operator(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Operators of a trace get what functions gave them."""


#: what a class has for itself: nothing of a list is told by it
_OF_CLASSES = {
    *("__new__", "__init__", "__class__", "__class_getitem__", "__getattribute__", "__doc__"),
    *("__setattr__", "__delattr__", "__init_subclass__", "__subclasshook__", "__dir__"),
}


def noting_list(values: Any, watch: ListWatch) -> Any:
    """A list or tuple of the values that tells the watch of all that Python asks it: its length, an item,
    steps over them, a sum with another list.
    """
    kind = type(values)
    methods = {
        name: _noting(method)
        for name in dir(kind)
        if name not in _OF_CLASSES and callable(method := getattr(kind, name))
    }
    added = _noting(lambda own, other: other + kind(own))
    return type(kind.__name__, (kind,), {**methods, "__radd__": added, "watch": watch})(values)


def _noting(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method, which tells the watch of its list before."""

    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_asked_by_model(sys._getframe(1)):
            self.watch.note_reading()
        return method(self, *args, **kwargs)

    return noted


def _is_asked_by_model(frame: FrameType | None) -> bool:
    """False where our code reads a list for itself: a reader of functions, or what torch calls of ours. What stands
    in the place of ``len`` is ours too, and asked by the model.
    """
    if frame is None or not is_own_code(frame.f_code.co_filename):
        return True
    while frame is not None and is_own_code(frame.f_code.co_filename):
        if frame.f_code is TraceMode.__torch_function__.__code__:
            return False
        frame = frame.f_back
    return frame is not None and is_code_of_model(frame.f_code.co_filename)
