"""Calls of other objects instead of the watched method: of the same class, or parts of the model.

A pipeline may call a copy of the model that it makes itself, or the parts of the model one by one.
Then nothing is recorded, and the error names what was called, and how often. A part in which all
weights of the model are is the model without a wrapper: ``generate()`` of an adapted model calls the
one inside.
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ...pytrees.nodes import qualified_name
from .hook import replaced_method
from .wrapper import Around

__all__ = ["SubmoduleCalls", "advice_on_parts", "part_of_class"]

_MOST_NAMED = 5
#: parts of parts further down are not looked at, and no more than these
_DEEPEST, _MOST = 3, 100


class SubmoduleCalls:
    """Counts the calls of the submodules of a model, until the watched method is called for the
    first time.

    They are watched as the model is, by their classes: a hook of torch on all modules would be seen
    by others. ``followed(name, part)`` gives what runs around the calls of a part that holds all
    weights.
    """

    def __init__(self, model: Any, followed: Callable[[str, Any], Around]) -> None:
        self.calls: Counter[str] = Counter()
        self._modules = list(_submodules(model))
        weighted = _weighted(model) if self._modules else frozenset()
        self._followed = {
            name: followed(name, part) for name, part in self._modules if _has_all(part, weighted)
        }
        self._held = contextlib.ExitStack()

    def begin(self) -> None:
        """Counts from now on."""
        for name, module in self._modules:
            with contextlib.suppress(Exception):  # what cannot be watched is not counted
                around = self._followed.get(name) or functools.partial(self._count, name)
                self._held.enter_context(replaced_method(module, "forward", around))

    def end(self) -> None:
        """Counts no further."""
        self._held.close()

    def _count(
        self, name: str, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if not torch.compiler.is_compiling():
            self.calls[name] += 1
        return original(*args, **kwargs)


def _submodules(model: Any) -> Iterator[tuple[str, torch.nn.Module]]:
    """The parts of a model that can be called; of one that was compiled, or is in a wrapper of
    torch, none.
    """
    if not isinstance(model, torch.nn.Module):
        return
    with contextlib.suppress(Exception):  # a class may show its modules in its own way
        found = [(name, module) for name, module in model.named_modules() if name]
        if any(_is_compiled(module) for module in (model, *(module for _, module in found))):
            return
        callable_ones = [
            (name, module)
            for name, module in found
            if name.count(".") < _DEEPEST and type(module).forward is not torch.nn.Module.forward
        ]
        yield from callable_ones[:_MOST]


def _weighted(model: Any) -> frozenset[int]:
    """The modules that have weights of their own, by identity."""
    return frozenset(
        id(module)
        for module in model.modules()
        if [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    )


def _has_all(part: torch.nn.Module, weighted: frozenset[int]) -> bool:
    return bool(weighted) and weighted <= set(map(id, part.modules()))


def part_of_class(model: Any, name: str) -> Any:
    """The part of a model that is of a class and has all weights of the model; the model itself
    where it is of that class, or has no such part.

    >>> inner = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
    >>> part_of_class(torch.nn.Sequential(inner), "torch.nn.modules.linear.Linear")
    Linear(in_features=2, out_features=3, bias=True)
    """
    if qualified_name(type(model)) == name:
        return model
    parts = [part for _, part in _submodules(model) if qualified_name(type(part)) == name]
    weighted = _weighted(model) if parts else frozenset()
    return next((part for part in parts if _has_all(part, weighted)), model)


def _is_compiled(module: torch.nn.Module) -> bool:
    is_wrapper = type(module).__name__ in (
        "OptimizedModule",
        "DataParallel",
        "DistributedDataParallel",
    )
    return is_wrapper or getattr(module, "_compiled_call_impl", None) is not None


def advice_on_parts(calls: Counter[str]) -> str:
    """A sentence with the submodules that were called from outside, with a space after it;
    nothing where none was.
    """
    outer = {
        name: n
        for name, n in calls.items()
        if not any(name.startswith(f"{other}.") for other in calls)
    }
    if not outer:
        return ""
    named = [f"{name} ({n} calls)" if n > 1 else f"{name} (1 call)" for name, n in outer.items()]
    more = f", and {len(named) - _MOST_NAMED} others" if len(named) > _MOST_NAMED else ""
    first = next(iter(outer))
    return (
        f"Parts of it were called instead: {', '.join(named[:_MOST_NAMED])}{more}. Watch such a"
        f" part: model.{first}. "
    )
