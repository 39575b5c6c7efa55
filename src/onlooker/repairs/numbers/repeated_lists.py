"""``[0] * len(x)``: a list whose number of items is a size.

Python repeats a list by a plain number, so the graph would hold for the size of the example alone. Here the
list knows what it repeats, and how often; ``torch.tensor``, ``torch.cat`` and ``torch.stack`` make one tensor of what
is repeated, and repeat that::

    torch.tensor([0, 1] * n)          torch.tensor([0, 1]).repeat(n)
    torch.cat([x] * n, dim=1)         torch.cat([x], dim=1).repeat(1, n)

The first item and the last one are those of what is repeated. Anything else that reads such a list decides about
the number of its items.
"""

from __future__ import annotations

import builtins
import contextlib
from collections.abc import Callable
from typing import Any

import torch

from ...patches.swap import swapped
from ...torch_internals.trees import tree_map_only
from ..repair import Repair
from ..trace_mode import Reader
from .range_tensors import LIST_TAKERS

__all__ = ["REPEATED_LISTS", "RepeatedLists"]

_JOINS = (torch.cat, torch.concat, torch.concatenate, torch.stack)


class _Repeated(list[Any]):
    """A list of ``items`` repeated ``number`` times; as a plain list it has those of the example."""

    def __init__(self, items: list[Any], number: torch.SymInt) -> None:
        super().__init__(items * number.node.hint)
        self.items, self.number = list(items), number
        #: True once something decided about the number of items: it may have changed the list too
        self.is_plain = False

    def decided(self) -> _Repeated:
        """Decides about the number of items."""
        if not self.is_plain:
            builtins.int(self.number)
            self.is_plain = True
        return self

    def __getitem__(self, index: Any) -> Any:
        is_known = type(index) is int and not self.is_plain
        if is_known and -len(self.items) <= index < len(self.items):
            return self.items[index]
        return list.__getitem__(self.decided(), index)

    def __radd__(self, other: list[Any]) -> list[Any]:
        return other + list(self)


def _reading(name: str) -> Callable[..., Any]:
    method = getattr(list, name)

    def read(self: _Repeated, *args: Any, **kwargs: Any) -> Any:
        return method(self.decided(), *args, **kwargs)

    return read


for _name in (
    *("__iter__", "__len__", "__contains__", "__reversed__", "__repr__", "__eq__", "__ne__"),
    *(
        "__lt__",
        "__le__",
        "__gt__",
        "__ge__",
        "__add__",
        "__iadd__",
        "__mul__",
        "__rmul__",
        "__imul__",
    ),
    *(
        "__setitem__",
        "__delitem__",
        "append",
        "extend",
        "insert",
        "pop",
        "remove",
        "index",
        "count",
    ),
    *("sort", "reverse", "copy", "clear"),
):
    setattr(_Repeated, _name, _reading(_name))


class RepeatedLists(Reader):
    """Gives the lists of a trace that are repeated by a size, and the tensors that are made of them."""

    def __init__(self) -> None:
        self._has_some = False
        self._block = contextlib.ExitStack()

    def wants(self, func: Callable[..., Any]) -> bool:
        """True for all functions after a list was repeated."""
        return self._has_some

    def __enter__(self) -> RepeatedLists:
        for name in ("__mul__", "__rmul__"):
            times = self._times(getattr(torch.SymInt, name))
            self._block.enter_context(swapped(torch.SymInt, name, times))
        return self

    def __exit__(self, *error: Any) -> None:
        self._block.close()

    def _times(self, multiply: Callable[..., Any]) -> Callable[..., Any]:
        def times(number: torch.SymInt, other: Any) -> Any:
            if type(other) is not list or not other or type(number.node.hint) is not int:
                return multiply(number, other)
            if not number > 0:  # a tensor of no items is one of floats
                return []
            self._has_some = True
            return _Repeated(other, number)

        return times

    def on_call(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Makes a tensor of such a list; any other function decides about the number of its items."""
        is_new = func is torch.Tensor.new_tensor
        before, after = args[:is_new], args[is_new:]
        is_known = is_new or func in (*LIST_TAKERS, *_JOINS)
        if is_known and after and type(after[0]) is _Repeated and not after[0].is_plain:
            items, number = after[0].items, after[0].number
            made = func(*before, items, *after[1:], **kwargs)
            dim = after[1] if len(after) > 1 else kwargs.get("dim", 0) if func in _JOINS else 0
            numbers: list[Any] = [1] * made.dim()
            numbers[dim] = number
            return made.repeat(*numbers)
        args, kwargs = tree_map_only(_Repeated, _plain, (args, kwargs))
        return func(*args, **kwargs)

    def plain(self, result: Any) -> Any:
        """The result of a model with plain lists."""
        return tree_map_only(_Repeated, _plain, result) if self._has_some else result


def _plain(repeated: _Repeated) -> list[Any]:
    return list(repeated)


REPEATED_LISTS = Repair(
    "repeated lists",
    "`[0] * len(x)` makes a constant of the size: Python repeats a list by a plain number. Such a list knows"
    " how often it repeats what, and `torch.tensor` and `torch.cat` repeat their results.",
    until="tests/repairs/test_repeated_lists.py::test_any_number_of_items_is_served",
    link="https://docs.python.org/3/reference/datamodel.html#object.__rmul__",
    always=True,
)
