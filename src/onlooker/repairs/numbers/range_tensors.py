"""``torch.tensor(list(range(n)))``, ``torch.tensor([i for i in range(n)][::-1])``: a tensor of the
numbers of a ``range``, written as a list of Python.

A list has a plain number of items, so the graph would hold for the size of the example alone. The
source around ``range(...)`` tells where such a list becomes a tensor and nothing else:

    torch.tensor(list(range(n - 2))[::-1], device=device)
                      range(n - 2)                          gives [0, 1, ..., 7] for an n of 10
                 list(range(n - 2))[::-1]                    still has all of them, in some order
    torch.tensor(...)                                       computes arange(n - 2 - 1, -1, -1)

There the list has items that know the range that they come from, and ``torch.tensor`` computes the
range by ``torch.arange``, which takes a size. Nothing is decided about the number of items, unless
such a list never comes to ``torch.tensor``. The same holds for a list that chooses rows, and for one that other
lists are added to: ``x[:, [0] + list(range(n - 1))]``.
"""

from __future__ import annotations

import ast
import builtins
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from ...model_source.frames import looked_up
from ...model_source.source_tests import expressions_around
from .size_ints import RangeOfSizes

__all__ = ["LIST_TAKERS", "RangeTensors", "hint_of", "with_tensors"]

#: the functions that make a tensor of a list
LIST_TAKERS = (torch.tensor, torch.as_tensor)
_OPTIONS = frozenset({"dtype", "device"})
#: with fewer items a list does not tell in which order it has them
_FEWEST = 2


@dataclass(frozen=True, slots=True, eq=False)
class _Numbers:
    """The numbers ``start, start + step, ...`` of a range, ``count`` of them."""

    start: Any
    step: int
    count: Any

    def tensor(self, *, backwards: bool) -> torch.Tensor:
        """The numbers as a tensor of int64."""
        places = torch.arange(self.count)
        if backwards:
            places = self.count - 1 - places
        return torch.add(self.step * places, self.start)


class _Item(int):
    """One of the numbers of a range, at its place in the example."""

    numbers: _Numbers
    place: int


class RangeTensors:
    """The lists of one trace that stand for ranges and become tensors."""

    def __init__(self) -> None:
        self._waiting: dict[_Numbers, None] = {}

    def listed(self, start: Any, step: int, count: torch.SymInt, frame: FrameType) -> Any:
        """Returns a list of the numbers of a ``range`` that a frame of a model asks for, where the
        source makes a tensor of it; None elsewhere.
        """
        length, first = count.node.hint, hint_of(start)
        if type(length) is not int or first is None or length < _FEWEST:
            return None
        if not _becomes_tensor(frame):
            return None
        numbers = _Numbers(start, step, count)
        self._waiting[numbers] = None
        return list(_items(numbers, first, length))

    def tensor(self, items: Any, options: dict[str, Any]) -> Any:
        """Returns what ``torch.tensor`` gives for a list of such items; None for any other value."""
        if not self.takes(items, options):
            return None
        parts = [
            torch.tensor(part) if isinstance(part, list) else part[0].tensor(backwards=part[1])
            for part in _parts_of(items) or ()
        ]
        made = parts[0] if len(parts) == 1 else torch.cat(parts)
        return made.to(options.get("device"), options.get("dtype") or torch.int64)

    def chosen(self, index: Any) -> Any:
        """Returns the index of a tensor with a tensor in the place of such a list; None where there is none."""
        return with_tensors(index, lambda place: self.tensor(place, {}))

    def takes(self, items: Any, options: dict[str, Any]) -> bool:
        """True for a list that has all items of ranges, in order or backwards, and plain ints, and that
        becomes a tensor now.
        """
        parts = _parts_of(items) if type(items) in (list, tuple) else None
        if parts is None or not _OPTIONS.issuperset(options):
            return False  # the number of items is decided on at the end
        for part in parts:
            if not isinstance(part, list):
                self._waiting.pop(part[0], None)
        return True

    @property
    def builtins(self) -> dict[str, Any]:
        """The ``range`` that gives these lists, and decides the number of its steps elsewhere."""
        return {"range": type("range", (RangeOfSizes,), {"listed": staticmethod(self.listed)})}

    def settle(self) -> None:
        """Decides the number of items of the lists that became no tensors."""
        for numbers in self._waiting:
            builtins.int(numbers.count)
        self._waiting.clear()


def with_tensors(index: Any, made_of: Callable[[Any], torch.Tensor | None]) -> Any:
    """Returns the index of a tensor with what a function makes of its parts; None where it makes nothing of any."""
    places = index if isinstance(index, tuple) else (index,)
    found = [made_of(place) for place in places]
    if all(one is None for one in found):
        return None
    pairs = zip(found, places, strict=True)
    return tuple(place if one is None else one for one, place in pairs)


def _parts_of(items: Sequence[Any]) -> list[Any] | None:
    """The ranges of which a list has all items, each with whether they are backwards, and the plain ints between
    them; None for other lists.
    """
    parts: list[Any] = []
    for numbers, group in itertools.groupby(items, lambda item: getattr(item, "numbers", None)):
        run = list(group)
        if numbers is None and all(type(item) is int for item in run):
            parts.append(run)
            continue
        places = [getattr(item, "place", None) for item in run]
        ascending = [] if numbers is None else list(range(numbers.count.node.hint))
        if not ascending or places not in (ascending, ascending[::-1]):
            return None
        parts.append((numbers, places != ascending))
    return parts if any(isinstance(part, tuple) for part in parts) else None


def _items(numbers: _Numbers, first: int, length: int) -> Iterator[_Item]:
    for place in range(length):
        item = _Item(first + place * numbers.step)
        item.numbers, item.place = numbers, place
        yield item


def hint_of(size: Any) -> int | None:
    """The plain number of a size in the example; None where it is not known."""
    number = size.node.hint if isinstance(size, torch.SymInt) else size
    return number if type(number) is int else None


def _becomes_tensor(frame: FrameType) -> bool:
    """True where the expressions around the instruction of a frame make a list of a range, and a
    tensor of this list.
    """
    nodes = expressions_around(frame.f_code, frame.f_lasti)
    for inner, outer in itertools.pairwise(nodes):
        if isinstance(outer, ast.Subscript) and outer.slice is inner:
            return True
        if isinstance(outer, ast.Call) and _is_first(inner, outer):
            if any(_named(outer.func, frame) is maker for maker in LIST_TAKERS):
                return True
            is_list = any(_named(outer.func, frame) is one for one in (list, tuple, reversed))
            if not is_list or len(outer.args) != 1 or outer.keywords:
                return False
        elif not (
            _is_reversal(inner, outer) or _is_same_list(inner, outer) or _is_sum_or_index(outer)
        ):
            return False
    return False


def _is_first(inner: ast.expr, outer: ast.Call) -> bool:
    return bool(outer.args) and outer.args[0] is inner


def _is_reversal(inner: ast.expr, outer: ast.expr) -> bool:
    """True for ``inner[::-1]``."""
    if not isinstance(outer, ast.Subscript) or outer.value is not inner:
        return False
    return ast.unparse(outer.slice) == "::-1"


def _is_sum_or_index(outer: ast.expr) -> bool:
    """True for a sum of lists, and for the indices of several dimensions."""
    return isinstance(outer, ast.Tuple) or (
        isinstance(outer, ast.BinOp) and isinstance(outer.op, ast.Add)
    )


def _is_same_list(inner: ast.expr, outer: ast.expr) -> bool:
    """True for ``[i for i in inner]``."""
    if not isinstance(outer, ast.ListComp) or len(outer.generators) != 1:
        return False
    loop = outer.generators[0]
    names = (loop.target, outer.elt)
    is_same = all(isinstance(name, ast.Name) for name in names) and (
        ast.unparse(loop.target) == ast.unparse(outer.elt)
    )
    return is_same and loop.iter is inner and not loop.ifs


def _named(node: ast.expr, frame: FrameType) -> Any:
    """The object of a name, or of a name of a module: ``list``, ``torch.tensor``."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        owner = _named(node.value, frame)
        return getattr(torch, node.attr, None) if owner is torch else None
    try:
        return looked_up(node.id, frame) if isinstance(node, ast.Name) else None
    except LookupError:
        return None
