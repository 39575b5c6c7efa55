"""The sizes that the Python of a model reads from tensors, in their order.

The decisions of a trace are about these sizes. An operator that decides anew at sizes of 0 and 1
may give a tensor of another shape (``x.squeeze(0)``), and then the model decides by another size,
even where nothing else is computed from that tensor.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Any

import torch

from ..repairs.trace_mode import Reader
from ..torch_internals.sizes import SIZE_READS
from ..torch_internals.tracing import inner_environment
from ..torch_internals.trees import tree_leaves

__all__ = ["SizeReads", "SmallReads", "may_read_sizes"]

#: names of what tells sizes, in the code of functions of torch
_NAMES = frozenset(
    ("shape", "size", "numel", "nelement", "len", "stride", "is_same_size", "broadcast_tensors")
)
#: the modules of torch whose functions a mode sees from outside
_MODULES = ("torch.nn.functional", "torch.functional", "torch._tensor")


class SizeReads(Reader):
    """Inside the block every read is noted: ``sizes`` has the numbers of each, symbolic ones in a
    trace.
    """

    functions = SIZE_READS

    def __init__(self) -> None:
        self.sizes: list[tuple[Any, ...]] = []

    def on_call(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Notes the sizes that a function gives, but for those that torch reads to trace an inner graph."""
        result = func(*args, **kwargs)
        if inner_environment() is None:
            self.sizes.append(tuple(_numbers(result)))
        return result


def _numbers(result: Any) -> Iterator[Any]:
    if isinstance(result, Sequence):
        for item in result:
            yield from _numbers(item)
    else:
        yield result


class SmallReads(Reader):
    """Notes functions of torch, written in Python, that get a tensor with an axis of size 1 and may read
    it: no mode sees what is read inside of them.
    """

    def __init__(self) -> None:
        self.found: list[str] = []

    def wants(self, func: Callable[..., Any]) -> bool:
        """True for a function whose code may read sizes."""
        return may_read_sizes(func)

    def on_call(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Notes the function; it has to be the first reader, so that its own reads are not seen."""
        leaves = tree_leaves((args, kwargs))
        if any(isinstance(leaf, torch.Tensor) and 1 in leaf.shape for leaf in leaves):
            self.found.append(func.__name__)
        return func(*args, **kwargs)


@functools.cache
def may_read_sizes(func: Any) -> bool:
    """True for a function of Python whose code, or what it calls of torch, names what tells sizes.

    >>> may_read_sizes(torch.nn.functional.mse_loss), may_read_sizes(torch.nn.functional.relu)
    (True, False)
    """
    left, seen = [func], set()
    while left:
        one = inspect.unwrap(left.pop())
        if one in seen or not isinstance(one, FunctionType) or not _is_followed(one):
            continue
        seen.add(one)
        names = frozenset(one.__code__.co_names)
        if not _NAMES.isdisjoint(names):
            return True
        called = (one.__globals__.get(name, getattr(torch, name, None)) for name in names)
        left += [other for other in called if isinstance(other, FunctionType)]
    return False


def _is_followed(func: FunctionType) -> bool:
    """False for functions that only hand on or warn, and for a lookup, which reads the size of its
    table alone.
    """
    is_lookup = func is torch.nn.functional.embedding
    return not is_lookup and func.__module__.startswith(_MODULES)
