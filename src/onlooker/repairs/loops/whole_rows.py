"""Rows that a model takes apart and joins again: ``torch.cat(list(x))`` is ``x`` without its first
dimension.

torch makes a dynamic size a constant where a tensor is taken apart along it. Where all parts are
only joined again, in their order, none is needed: the parts of the trace are stand-ins, and what
joins them reads the whole tensor. A part that anything else reads is taken from a real split, with
the constant that torch makes of its size.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...model_source.frames import asked_of_model
from ...model_source.source_loops import is_sliced
from ...torch_internals.trees import tree_map_only
from ..repair import Repair
from ..trace_mode import Reader

__all__ = ["WHOLE_ROWS", "WholeRows", "is_about", "joined_again"]

_SPLITS = (torch.unbind, torch.Tensor.unbind)
_CATS = (torch.cat, torch.concat, torch.concatenate)
_ABOUT = {"shape", "dtype", "device", "ndim", "layout", "is_cuda", "is_cpu"}
_ASKS = (torch.Tensor.size, torch.Tensor.dim, torch.Tensor.is_floating_point)


@dataclass(frozen=True, slots=True, eq=False)
class _Split:
    """A tensor that was taken apart along ``dim``, and the stand-ins of its parts. Where the model slices their
    list it ``is_sliced``, and all parts of a trace may be those of a slice.
    """

    whole: torch.Tensor
    dim: int
    parts: tuple[torch.Tensor, ...]
    is_sliced: bool


class WholeRows(Reader):
    """Joins in a trace what was only taken apart; ``joined`` says how often."""

    def __init__(self) -> None:
        self.joined = 0
        self._splits: list[_Split] = []
        self._whole_again: set[int] = set()
        #: the splits of which a part was read at a place, and those whose parts Python counted
        self._by_place: set[int] = set()
        self._counted: set[int] = set()
        self._of: dict[int, tuple[_Split, int]] = {}
        self._real: dict[int, tuple[torch.Tensor, ...]] = {}
        self._last: _Split | None = None

    def wants(self, func: Callable[..., Any]) -> bool:
        """True for what takes a tensor apart, and for all functions after that."""
        return bool(self._of) or func in _SPLITS

    def on_call(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Gives stand-ins for the rows of a tensor, and the tensor where they are joined."""
        last, self._last = self._last, None
        if func is torch.Tensor.__len__ and last is not None and last.whole is args[0]:
            return len(
                last.parts
            )  # list(x) asks for the length, as a hint, after it began to iterate
        if func in _SPLITS and (split := _apart(*args, **kwargs)) is not None:
            self._of |= {id(part): (split, i) for i, part in enumerate(split.parts)}
            self._splits.append(split)
            self._last = split
            return split.parts
        if not self._of or is_about(func):
            return func(*args, **kwargs)
        if func in (*_CATS, torch.stack):
            whole = self._whole(func, *args, **kwargs)
            if whole is not None:
                return whole
        args, kwargs = tree_map_only(torch.Tensor, self.value, (args, kwargs))
        return func(*args, **kwargs)

    def _whole(
        self, func: Callable[..., Any], tensors: Any, dim: int = 0, **others: Any
    ) -> torch.Tensor | None:
        """Joins tensors that are all parts of one tensor, in their order; None for other tensors."""
        found = (
            self._of.get(id(tensors[0])) if isinstance(tensors, Sequence) and len(tensors) else None
        )
        if found is None or others or [id(x) for x in tensors] != [id(x) for x in found[0].parts]:
            return None
        split = found[0]
        if split.is_sliced and type(tensors) in (list, tuple):
            return None
        if split.whole.ndim == (func is not torch.stack):
            return None
        self.joined += 1
        self._whole_again.add(id(split))
        return joined_again(func, split.whole, split.dim, dim)

    def length(self, value: Any, other: Callable[[Any], Any]) -> Any:
        """``len``: where parts are counted, their number becomes a constant of the trace, with a
        guard; of anything else what ``other`` says.
        """
        if isinstance(value, (tuple, list)) and len(value) and id(value[0]) in self._of:
            split = self._of[id(value[0])][0]
            if len(value) == len(split.parts):
                return int(split.whole.shape[split.dim])
        return other(value)

    def read_by_steps(self, parts: Sequence[torch.Tensor]) -> None:
        """A loop reads all parts, one a step, whatever their number."""
        self._whole_again |= self._splits_of(parts)

    def read_by_place(self, parts: Sequence[torch.Tensor]) -> None:
        """A part is read at a number, from either end, whatever their number."""
        self._by_place |= self._splits_of(parts)

    def counted(self, parts: Sequence[torch.Tensor]) -> None:
        """Python reads how many parts there are."""
        self._counted |= self._splits_of(parts)

    def _splits_of(self, parts: Sequence[torch.Tensor]) -> set[int]:
        """The identity of the split that made these parts; nothing for other tensors."""
        return {id(self._of[id(one)][0]) for one in parts[:1] if id(one) in self._of}

    @contextlib.contextmanager
    def in_steps(self) -> Iterator[None]:
        """Inside the block parts are those of the steps of a loop, which the trace does not see. A part that is
        read after the block is taken from the tensor again.
        """
        before = dict(self._real)
        try:
            yield
        finally:
            self._real = before

    def __exit__(self, *error: Any) -> None:
        served = self._whole_again | self._real.keys() | self._by_place - self._counted
        for split in self._splits if error[0] is None else ():
            if id(split) not in served:
                int(
                    split.whole.shape[split.dim]
                )  # taken apart and never joined: what the model counts is a constant

    def value(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor, or the part that it stands for: for functions that read it, and for results."""
        found = self._of.get(id(tensor))
        if found is None:
            return tensor
        split, index = found
        if id(split) not in self._real:
            self._real[id(split)] = split.whole.unbind(split.dim)
        return self._real[id(split)][index]


def joined_again(
    func: Callable[..., Any], whole: torch.Tensor, taken: int, dim: int
) -> torch.Tensor:
    """``torch.stack`` or ``torch.cat`` along ``dim`` of all parts of a tensor that was ``taken`` apart along a
    dimension: a copy, to which the model may write.
    """
    is_stack = func is torch.stack
    place = dim % (whole.ndim if is_stack else whole.ndim - 1)
    moved = whole.movedim(taken, place)
    joined = moved if is_stack else moved.flatten(place, place + 1)
    return joined.clone(memory_format=torch.contiguous_format)


def is_about(func: Callable[..., Any]) -> bool:
    """True for a function that tells shape, dtype or device of a tensor, and computes nothing."""
    return func in _ASKS or getattr(getattr(func, "__self__", None), "__name__", "") in _ABOUT


def _apart(tensor: torch.Tensor, dim: int = 0) -> _Split | None:
    """The stand-ins of the parts, where their number is not fixed."""
    dim = dim % tensor.ndim if tensor.ndim else 0
    size = tensor.shape[dim] if tensor.ndim else 0
    if not isinstance(size, torch.SymInt) or size.node.is_constant() or not size.node.has_hint():
        return None
    parts = tuple(tensor.select(dim, 0) for _ in range(int(size.node.hint)))
    return _Split(tensor, dim, parts, asked_of_model(is_sliced))


WHOLE_ROWS = Repair(
    "whole rows",
    "torch makes a dynamic size a constant where a tensor is taken apart along it, also where"
    " ``torch.cat(list(x))`` only joins the parts again. Stand-ins are joined to the whole"
    " tensor.",
    until="tests/repairs/test_whole_rows.py::test_rows_that_are_only_joined_again_are_one_graph",
    always=True,
)
