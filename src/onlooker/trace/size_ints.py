"""``int(size)``, ``len(tensor)`` and ``range(size)`` in the code of a model, which torch makes
constants while it traces it.

Python wants a number of ``int()``, so torch gives that of the example and makes the size a
constant. While the block lasts, ``int`` in the files of the model's own modules is a class that
leaves a symbolic size as it is, and rounds a symbolic float towards zero; of a tensor with one
number it makes what ``item()`` gives, a symbol whose value is known when the program runs. Of
anything else it makes what ``int`` makes. ``len`` of a tensor is its first size. Of a ``range``
with steps only the number of steps is a constant: 128 tokens and 14 are both one block of 128.

Upstream: https://github.com/pytorch/pytorch/blob/v2.13.0/torch/__init__.py, where
``SymInt.__int__`` guards, and ``sym_int`` does not. It may go when a trace does this itself;
``test_an_int_of_a_size`` of ``tests/trace/test_size_tensors.py`` is then exact without it.
"""

from __future__ import annotations

import builtins
import contextlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any, ClassVar

import torch

from ..patches.swap import swapped
from ..torch_internals.fake_tensors import FakeTensor
from .decisions import Decision

__all__ = [
    "RangeOfSizes",
    "asks_for_int",
    "bakes_int",
    "builtins_swapped",
    "files_of",
    "ints_stay_sizes",
    "is_asked_at",
    "length_of",
]

_ASKS = re.compile(r"(?<![\w.])(int|len|range|divmod)\(")
#: from a file of the model to one that it has a function from, and so on
_MOST_HOPS = 3


class _OfInts(type):
    """``isinstance`` answers as outside of a trace, where a size is an int."""

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, (builtins.int, torch.SymInt))

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, builtins.int)


class _Int(int, metaclass=_OfInts):
    def __new__(cls, value: Any = 0, *args: Any, **kwargs: Any) -> Any:
        if isinstance(value, FakeTensor) and value.numel() == 1:
            value = value.item()
        if isinstance(value, (torch.SymInt, torch.SymFloat)):
            return torch.sym_int(value)  # type: ignore[no-untyped-call]
        return builtins.int(value, *args, **kwargs)


class _OfRanges(type):
    """``isinstance`` answers as for ``range``."""

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, builtins.range)


class RangeOfSizes(metaclass=_OfRanges):
    """``range``, of which only the number of steps is a constant; ``loop`` may give steps instead,
    from the first value, the step and the number of steps.
    """

    loop: ClassVar[Callable[[Any, int, Any], Iterable[Any] | None]] = staticmethod(lambda *_: None)

    def __new__(cls, *args: Any) -> Any:
        """The numbers of a ``range``, or what stands for them."""
        if not any(isinstance(value, torch.SymInt) for value in args):
            return builtins.range(*args)
        start, stop, step = (0, args[0], 1) if len(args) == 1 else (*args, 1)[:3]
        if not isinstance(step, builtins.int) or step == 0:
            return builtins.range(*args)
        way = abs(step)
        count = ((stop - start if step > 0 else start - stop) + (way - 1)) // way
        if isinstance(count, torch.SymInt) and not count.node.expr.is_number:
            steps = cls.loop(start, step, count)
            if steps is not None:
                return steps
        if step < 1:
            return builtins.range(*args)
        count = builtins.int(count)
        return [start + number * step for number in builtins.range(count)]


def _divmod(left: Any, right: Any) -> Any:
    """``divmod``, which torch does not know for symbolic sizes."""
    if isinstance(left, torch.SymInt) or isinstance(right, torch.SymInt):
        return left // right, left % right
    return builtins.divmod(left, right)


def length_of(value: Any) -> Any:
    """``len``, which of a tensor is its first size."""
    if isinstance(value, torch.Tensor) and value.ndim:
        return value.shape[0]
    return builtins.len(value)


#: what stands for a name while a model is traced
_NAMES = {"int": _Int, "len": length_of, "range": RangeOfSizes, "divmod": _divmod}


def asks_for_int(decisions: Iterable[Decision]) -> bool:
    """True where one of the lines that asked about a size has an ``int(...)`` or another of them."""
    return any(map(is_asked_at, (decision.line for decision in decisions)))


def is_asked_at(line: str) -> bool:
    """True for a line of code with an ``int(...)``, a ``len(...)``, a ``range(...)``.

    >>> is_asked_at("zeros(int(index.max()) + 1)"), is_asked_at("print(index)")
    (True, False)
    """
    return _ASKS.search(line) is not None


def bakes_int(decisions: Iterable[Decision]) -> bool:
    """True where a line with an ``int(...)`` made a number of what is computed from a size."""
    return asks_for_int(decision for decision in decisions if decision.is_number)


@contextlib.contextmanager
def ints_stay_sizes(model: Any) -> Iterator[None]:
    """Swaps ``int`` and others in the files that define the modules of a model; a file that has
    its own keeps it.
    """
    with builtins_swapped(model, _NAMES):
        yield


@contextlib.contextmanager
def builtins_swapped(model: Any, names: Mapping[str, Any]) -> Iterator[None]:
    """Swaps builtins in the files that define the modules of a model, and in those that they have
    functions from.

    A file that has such a name of its own keeps it.
    """
    with contextlib.ExitStack() as stack:
        for file in files_of(model):
            for name, value in names.items():
                if vars(file).get(name) in (None, _NAMES.get(name)):
                    stack.enter_context(swapped(file, name, value))
        yield


def files_of(model: Any) -> list[ModuleType]:
    """The files of the classes of all modules, those of torch left out."""
    modules = model.modules() if isinstance(model, torch.nn.Module) else ()
    classes = dict.fromkeys(cls for module in modules for cls in type(module).__mro__)
    names = dict.fromkeys(cls.__module__ for cls in classes if issubclass(cls, torch.nn.Module))
    found = {name: None for name in names if name in sys.modules and _is_open(name)}
    last = list(found)
    for _ in range(_MOST_HOPS):
        last = [name for name in _functions_from(last) if name not in found]
        found |= dict.fromkeys(last)
    return [sys.modules[name] for name in found]


def _functions_from(names: Iterable[str]) -> dict[str, None]:
    """The files that these files have functions from."""
    values = [value for name in names for value in vars(sys.modules[name]).values()]
    files = [value.__module__ for value in values if isinstance(value, FunctionType)]
    return dict.fromkeys(name for name in files if _is_open(name) and name in sys.modules)


def _is_open(name: str | None) -> bool:
    """True for a file that is neither torch's, Python's nor ours; a function that was made at run time
    has none.
    """
    if not name:
        return False
    root = name.partition(".")[0]
    own = __name__.partition(".")[0]
    return root not in ("torch", own) and root not in sys.stdlib_module_names
