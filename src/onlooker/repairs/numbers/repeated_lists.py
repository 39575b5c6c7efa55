"""``[0] * len(x)``, ``lengths.tolist()``: a list whose number of items is a size.

Python repeats a list by a plain number, so the graph would hold for the size of the example alone. Here the
list knows what it repeats, and how often; ``torch.tensor``, ``torch.cat`` and ``torch.stack`` make one tensor of what
is repeated, and repeat that::

    torch.tensor([0, 1] * n)          torch.tensor([0, 1]).repeat(n)
    torch.cat([x] * n, dim=1)         torch.cat([x], dim=1).repeat(1, n)

The first item and the last one are those of what is repeated. Anything else that reads such a list decides about
the number of its items.

The values of a tensor in a list, or in an array of NumPy, are that tensor where one is made of them again, or rows are
packed by them; their number is its size, and the greatest of them its maximum::

    lengths = lengths.tolist()                           lengths
    mask = arange(max(lengths)) < x.new(lengths)         arange(lengths.max()) < lengths
    pack_padded_sequence(x, lengths.cpu().numpy())       pack_padded_sequence(x, lengths)
"""

from __future__ import annotations

import builtins
import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy
import torch

from ...model_source.frames import begins_loop
from ...patches.swap import swapped
from ...torch_internals.fake_tensors import FakeTensor
from ...torch_internals.trees import tree_map_only
from ..repair import Repair
from ..trace_mode import Reader
from .range_tensors import LIST_TAKERS, hint_of
from .size_tensors import has_known_sizes, holds_ints

__all__ = ["REPEATED_LISTS", "RepeatedLists", "SizedList", "repeated_item", "values_of"]

_JOINS = (torch.cat, torch.concat, torch.concatenate, torch.stack)


class SizedList(list[Any]):
    """A list with a ``number`` of items that is a size; as a plain list it has those of the example."""

    #: the type that it is outside of a trace
    stands_for: ClassVar[type] = list
    number: torch.SymInt | int
    #: True once something decided about the number of items: it may have changed the list too
    is_plain = False
    #: the index and the item of each step of a loop over such a list; None where Python itself runs the loop
    steps_over: Callable[[Any], Iterator[tuple[Any, Any]] | None] = staticmethod(lambda _: None)

    def __iter__(self) -> Iterator[Any]:
        is_loop = not self.is_plain and begins_loop(sys._getframe(1))
        steps = self.steps_over(self) if is_loop else None
        return list.__iter__(self.decided()) if steps is None else (item for _, item in steps)

    def decided(self) -> SizedList:
        """Decides about the number of items."""
        if not self.is_plain:
            builtins.int(self.number)
            self.is_plain = True
            self.fill()
        return self

    def fill(self) -> None:
        """Puts the items into the list, where they are not known before."""

    def __radd__(self, other: list[Any]) -> list[Any]:
        return other + list(self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return list, (list(self),)  # a copy is a plain list


class _Repeated(SizedList):
    """A list of ``items`` repeated ``number`` times."""

    def __init__(self, items: list[Any], number: torch.SymInt) -> None:
        super().__init__(items * number.node.hint)
        self.items, self.number = list(items), number

    def __getitem__(self, index: Any) -> Any:
        is_known = type(index) is int and not self.is_plain
        if is_known and -len(self.items) <= index < len(self.items):
            return self.items[index]
        return list.__getitem__(self.decided(), index)


#: stands for a value that nothing has read yet: no code may take it for a number
_UNREAD = object()


class _Values(SizedList):
    """The values of a tensor of one dimension."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.number = tensor, tensor.shape[0]
        super().__init__([_UNREAD] * (hint_of(self.number) or 0))

    def fill(self) -> None:
        """Reads the values one by one."""
        list.__setitem__(self, slice(None), [one.item() for one in self.tensor])

    def extreme(self, name: str) -> Any:
        """The greatest value, the least one, or their sum."""
        return getattr(self.tensor, name)().item()


class _ValuesOfArray(_Values):
    """The values of a tensor as an array of NumPy, which decides where it is more than a list of values."""

    stands_for = numpy.ndarray

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        numbers = numpy.array(list(self.decided()), dtype=object)
        numbers.flags.writeable = False
        return numbers if dtype is None else numbers.astype(dtype)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__array__(), name)

    @property
    def shape(self) -> tuple[Any]:
        """The number of values, as the one dimension."""
        return (self.number,)

    @property
    def size(self) -> Any:
        """The number of values."""
        return self.number

    def tolist(self) -> list[Any]:
        """The values as a list."""
        return _Values(self.tensor)

    def __getitem__(self, index: Any) -> Any:
        return self.__array__()[index]


def _as_array(name: str) -> Callable[..., Any]:
    def compute(self: _ValuesOfArray, *args: Any) -> Any:
        return getattr(self.__array__(), name)(*args)

    return compute


def _reducing(name: str) -> Callable[..., Any]:
    def reduce(self: _ValuesOfArray, *args: Any, **kwargs: Any) -> Any:
        is_of_tensor = not (args or kwargs or self.is_plain)
        return (
            self.extreme(name) if is_of_tensor else getattr(self.__array__(), name)(*args, **kwargs)
        )

    return reduce


def _reading(name: str) -> Callable[..., Any]:
    method = getattr(list, name)

    def read(self: SizedList, *args: Any, **kwargs: Any) -> Any:
        return method(self.decided(), *args, **kwargs)

    return read


for _name in (
    *(
        "__getitem__",
        "__len__",
        "__contains__",
        "__reversed__",
        "__repr__",
        "__eq__",
        "__ne__",
    ),
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
    setattr(SizedList, _name, _reading(_name))
for _name in (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"),
    *("radd", "rsub", "rmul", "rtruediv", "rfloordiv", "rmod", "rpow"),
    *("eq", "ne", "lt", "le", "gt", "ge", "neg"),
):
    setattr(_ValuesOfArray, f"__{_name}__", _as_array(f"__{_name}__"))
for _name in ("max", "min", "sum"):
    setattr(_ValuesOfArray, _name, _reducing(_name))


class RepeatedLists(Reader):
    """Gives the lists of a trace that are repeated by a size, and the tensors that are made of them."""

    def __init__(self) -> None:
        self._has_some = False
        self._block = contextlib.ExitStack()

    def wants(self, func: Callable[..., Any]) -> bool:
        """True for all functions after such a list was made."""
        return self._has_some or func is torch.Tensor.numpy

    def __enter__(self) -> RepeatedLists:
        for name in ("__mul__", "__rmul__"):
            times = self._times(getattr(torch.SymInt, name))
            self._block.enter_context(swapped(torch.SymInt, name, times))
        # no mode of torch is told of these
        for name, other in (("new", _new), ("tolist", self._tolist)):
            function = other(getattr(FakeTensor, name))
            self._block.enter_context(swapped(FakeTensor, name, function))
        return self

    def __exit__(self, *error: Any) -> None:
        self._block.close()

    def _tolist(self, of_torch: Callable[..., Any]) -> Callable[..., Any]:
        def tolist(tensor: FakeTensor) -> Any:
            is_known = tensor.constant is not None or has_known_sizes(tensor)
            if is_known or not _has_values(tensor):
                return of_torch(tensor)  # functions of C read its items
            self._has_some = True
            return _Values(torch.clone(tensor))  # what is written to it later is not in the list

        return tolist

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
        if func is torch.Tensor.numpy and _has_values(args[0]):
            self._has_some = True
            return _ValuesOfArray(args[0])
        if func in _TAKE_VALUES and (values := _values_in(args)) is not None:
            return _of_values(func, values, args, kwargs)
        if func in _INDEXED:
            args = tree_map_only(_Values, _as_index, args)
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
        args, kwargs = tree_map_only(SizedList, _plain, (args, kwargs))
        return func(*args, **kwargs)

    def plain(self, result: Any) -> Any:
        """The result of a model with plain lists."""
        return tree_map_only(SizedList, _plain, result) if self._has_some else result


def values_of(values: Any) -> torch.Tensor | None:
    """The tensor whose values a list has; None for other lists."""
    is_known = isinstance(values, _Values) and not values.is_plain
    return values.tensor if is_known else None


def repeated_item(values: Any) -> tuple[Any, Any] | None:
    """The one item of a list that is repeated by a size, and the size; None for other values."""
    is_known = isinstance(values, _Repeated) and not values.is_plain and len(values.items) == 1
    return (values.items[0], values.number) if is_known else None


def _plain(repeated: SizedList) -> list[Any]:
    return list(repeated)


def _as_index(values: _Values) -> torch.Tensor:
    return torch.tensor(list(values)) if values.is_plain else values.tensor


def _has_values(tensor: Any) -> bool:
    """True for ints of a trace in one dimension."""
    return holds_ints(tensor) and tensor.ndim == 1 and bool(hint_of(tensor.shape[0]))


def _values_in(args: tuple[Any, ...]) -> _Values | None:
    found = [one for one in args[:2] if isinstance(one, _Values) and not one.is_plain]
    return found[0] if found else None


def _new(of_torch: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """``x.new(values)``, an older name of ``new_tensor``."""

    def new(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        is_of_values = len(args) == 1 and not kwargs and _values_in(args) is not None
        return tensor.new_tensor(*args) if is_of_values else of_torch(tensor, *args, **kwargs)

    return new


def _of_values(
    func: Callable[..., Any], values: _Values, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The tensor that is made of the values of another one."""
    tensor = values.tensor
    if func is torch.Tensor.new_tensor:
        kwargs = {"dtype": args[0].dtype, "device": args[0].device, **kwargs}
    of_list = tensor.dtype if isinstance(values, _ValuesOfArray) else torch.int64
    device = kwargs.get("device") or torch.get_default_device()
    return torch.clone(tensor).to(device, kwargs.get("dtype") or of_list)


#: what makes a tensor of such values, and what takes them as an index
_TAKE_VALUES = frozenset({*LIST_TAKERS, torch.Tensor.new_tensor})
_INDEXED = frozenset({torch.Tensor.__getitem__, torch.Tensor.__setitem__})


REPEATED_LISTS = Repair(
    "lists of sizes",
    "`[0] * len(x)` makes a constant of the size: Python repeats a list by a plain number. Such a list knows"
    " how often it repeats what, and `torch.tensor` and `torch.cat` repeat their results. The values of a tensor in"
    " a list or an array (`lengths.tolist()`, `lengths.numpy()`) are this tensor again where a tensor is made of them"
    " or rows are packed by them.",
    until="tests/repairs/test_repeated_lists.py::test_any_number_of_items_is_served",
    link="https://docs.python.org/3/reference/datamodel.html#object.__rmul__",
    always=True,
)
