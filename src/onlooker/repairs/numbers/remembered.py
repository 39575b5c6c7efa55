"""Functions that remember their results are computed for a size, as they are for a size that is new.

    @functools.lru_cache
    def mask(length):
        return torch.ones(length, length).tril()

A cache wants a number for ``length``, and a graph would hold for the one of its example. What a cache
gives is what the function gives, as long as nobody writes to it: so in a trace the function itself is
called, where a size is among its arguments.

This is right for a function that draws no random numbers, writes to nothing that it did not make, and
gives tensors, numbers, and tuples, lists and dicts of them, to which nothing writes later. Otherwise the size becomes a
number, as in :mod:`.size_functions`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from ...observing.cached_functions import Cache, named_caches
from ...torch_internals.trees import tree_leaves
from ..live_part import LivePart, is_written, node_of, nodes_of_trace
from ..repair import Attempt, Repair, Retry
from ..trace_mode import InVainError, Reader

__all__ = ["REMEMBERED", "Remembered"]

#: that a function is computed hangs on nothing
_ALWAYS = torch.ones(())
#: what no write but one to a tensor changes
_CONSTANT = (torch.Tensor, int, float, bool, str, type(None), torch.SymInt, torch.SymFloat)


class NotComputedError(InVainError):
    """A function is asked as its cache is."""

    words = "{line} is remembered for each size: {reason}"


class Remembered(Reader):
    """Inside the block the functions of the source of a model that remember results are computed for
    sizes.
    """

    functions = frozenset[Any]()

    def __init__(self, model: Any) -> None:
        self._model = model
        self._made: list[tuple[str, LivePart, Any, Any, list[Node]]] = []
        self._swaps = contextlib.ExitStack()

    def __enter__(self) -> Any:
        self._swaps.enter_context(named_caches(self._model, self._computing))
        return self

    def __exit__(self, *error: Any) -> None:
        self._swaps.close()

    def _computing(self, cache: Cache) -> Callable[..., Any]:
        function = cache.__wrapped__

        @functools.wraps(function)
        def compute(*args: Any, **kwargs: Any) -> Any:
            if not any(isinstance(leaf, torch.SymInt) for leaf in tree_leaves((args, kwargs))):
                return cache(*args, **kwargs)
            part = LivePart(_ALWAYS)
            result = function(*args, **kwargs)
            part.close()
            nodes = [node for node in map(node_of, tree_leaves(result)) if node is not None]
            self._made.append((function.__qualname__, part, result, _content(result), nodes))
            return result

        for name in ("cache_info", "cache_clear", "cache_parameters"):
            setattr(compute, name, getattr(cache, name))
        return compute

    def check(self) -> None:
        """Passes where nothing tells these results from those that were remembered.

        :raises NotComputedError: elsewhere
        """
        for name, part, result, content, nodes in self._made:
            why = part.seen_outside((), nodes_of_trace())
            if content != _content(result):
                why = "it gives what may change"
            if is_written(nodes, but_by=part.nodes):
                why = "its result is written to"
            if why:
                raise self.failed(NotComputedError(name, why))


def _content(value: Any) -> Any:
    """A value by its parts, so that a write to a list or a dict shows; a part that another write may
    change is never equal.
    """
    if type(value) is dict:
        value = tuple(value.items())
    if type(value) in (tuple, list):
        return [_content(part) for part in value]
    return id(value) if isinstance(value, _CONSTANT) else object()


def _written_later(attempt: Attempt) -> Retry | None:
    remembered = attempt.reader(Remembered)
    if remembered is None or remembered.failure is None:
        return None
    return Retry(attempt.request.without_repair(REMEMBERED), str(remembered.failure))


REMEMBERED = Repair(
    "remembered results",
    "``functools.lru_cache`` wants a number for a size. A function that remembers its results is computed in"
    " a trace, where a size is among its arguments and nothing writes to what it gives.",
    until="tests/repairs/test_size_functions.py::test_what_a_function_remembers_is_computed_for_other_sizes",
    link="https://docs.python.org/3/library/functools.html#functools.lru_cache",
    always=True,
    failed=_written_later,
)
