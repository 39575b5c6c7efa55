"""One mode for all that reads the functions of torch that a model calls.

torch hands every function to the innermost ``TorchFunctionMode`` and takes this mode off while it
answers. A mode for each reader would cost each call of a function as many hops as there are readers.
Here a reader says which functions it wants, and every other function passes it by.

With the readers ``A, B, C`` a function goes to ``C`` first. What ``C`` calls, the function itself
above all, goes to ``B``, and what ``B`` calls to ``A``: as if each were a mode, and ``C`` the innermost.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from typing import Any, ClassVar, TypeVar

import torch
from torch.overrides import TorchFunctionMode

__all__ = ["InVainError", "Reader", "TraceMode", "reading"]

E = TypeVar("E", bound="InVainError")


class InVainError(Exception):
    """A repair does not hold at a line of the model, for this reason; never seen by a user."""

    words: ClassVar[str]

    def __init__(self, line: str, reason: str = "") -> None:
        super().__init__(self.words.format(line=line, reason=reason))
        self.line = line


class Reader:
    """Sees functions of torch that a model calls, and may answer them itself.

    It may prepare something in ``__enter__``, and put it back in ``__exit__``.
    """

    #: the functions that it may want; None for all of them
    functions: Collection[Any] | None = None
    #: the first reason for which its repair does not hold
    failure: InVainError | None = None

    def failed(self, error: E) -> E:
        """Remembers the first error, which the model may catch, and gives this one."""
        self.failure = self.failure or error
        return error

    def wants(self, func: Callable[..., Any]) -> bool:
        """False where one of the functions passes it by this time."""
        return True

    def on_call(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Returns the result of a function for these arguments; ``func(*args, **kwargs)`` hands it
        on.
        """
        return func(*args, **kwargs)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: Any) -> None:
        """Nothing is to be put back."""


class TraceMode(TorchFunctionMode):
    """Hands each function of torch to the readers that want it, the last one first."""

    def __init__(self, *readers: Reader) -> None:
        super().__init__()
        self._readers = readers
        #: how many readers, from the first one on, have not seen the function that is called now
        self._left = len(readers)
        #: per function the places of the readers that may want it, the last one first
        self._wanting: dict[Any, list[int]] = {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if torch.compiler.is_dynamo_compiling():  # it reads this code for a branch of torch.cond
            return func(*args, **kwargs)
        left = self._left
        for place in self._places(func):
            reader = self._readers[place]
            if place < left and reader.wants(func):
                break
        else:
            return func(*args, **kwargs)
        if place == 0:
            return reader.on_call(func, args, kwargs)
        self._left = place
        try:
            with self:  # torch has taken the mode off
                return reader.on_call(func, args, kwargs)
        finally:
            self._left = left

    def _places(self, func: Callable[..., Any]) -> list[int]:
        places = self._wanting.get(func)
        if places is None:
            wanted = [one.functions is None or func in one.functions for one in self._readers]
            places = [place for place, wants in enumerate(wanted) if wants][::-1]
            self._wanting[func] = places
        return places


@contextlib.contextmanager
def reading(*readers: Reader) -> Iterator[None]:
    """Inside the block the readers see the functions of torch; each is entered, and left."""
    with contextlib.ExitStack() as stack:
        for reader in readers:
            stack.enter_context(reader)
        with TraceMode(*readers):
            yield
