"""States that the steps of a loop write to: ``score += row`` changes one tensor in every step.

A ``scan`` gives each step a new state, so a step begins with a copy of the tensor, and writes to that::

    score = start[labels[:, 0]]            recorded of step 0        of step 1 and later
    for t in range(1, x.shape[1]):         0: clone(outer score)     0: clone(before #0)
        score += x[:, t]                   1: #0 += rows of x        1: #0 += rows of x

After the loop the tensor gets what the last step left. A step that reads the same memory by another
tensor, as ``score[0]``, would read what was there before the write: such a loop is no scan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from .loop_results import LoopResults
from .steps import Loop, memory_of, name_of

__all__ = ["WrittenStates", "result_of_write"]

_SHARED = "a step writes to a tensor whose memory it reads by another one"


class WrittenStates:
    """The tensors from before a loop that its steps write to, by the memory of each."""

    def __init__(self, results: LoopResults) -> None:
        self._results = results
        self._written: dict[int, torch.Tensor] = {}
        #: the tensors by which steps read each memory from before the loop
        self._read: dict[int, torch.Tensor] = {}
        self._shared: dict[int, torch.UntypedStorage] = {}

    def begin(self, loop: Loop, tensor: Any) -> bool | None:
        """Returns True where a step is to copy a tensor before it writes to it, False where it has copied
        it; None for a tensor of the steps.

        :raises NotRolledError: where a step reads the memory by another tensor
        """
        if not isinstance(tensor, torch.Tensor):
            return None
        memory = memory_of(tensor)
        origin = self._results.origin_of(tensor)
        is_written = self._written.get(memory) is tensor
        if origin is not None and not is_written:
            return None
        if memory in self._shared or self._read.get(memory, tensor) is not tensor:
            raise loop.refused(_SHARED)
        self._written[memory] = tensor
        return origin is None or origin.step < len(loop.steps) - 1

    def reads(self, loop: Loop, tensor: torch.Tensor) -> None:
        """A step reads a tensor from before the loop.

        :raises NotRolledError: for the memory of another tensor that steps write to
        """
        memory = memory_of(tensor)
        if self._written.get(memory, tensor) is not tensor:
            raise loop.refused(_SHARED)
        if self._read.setdefault(memory, tensor) is not tensor:
            self._shared[memory] = tensor.untyped_storage()

    def makes(
        self, loop: Loop, results: Iterable[torch.Tensor], given: Iterable[torch.Tensor]
    ) -> None:
        """A step makes tensors of others, which may share memory with them.

        :raises NotRolledError: for a view of a tensor that steps write to
        """
        memories = {memory_of(tensor) for tensor in given}
        for result in results:
            memory = memory_of(result)
            if memory in memories:
                self._shared[memory] = result.untyped_storage()
            if memory in self._shared and memory in self._written:
                raise loop.refused(_SHARED)

    def leave(self) -> None:
        """Writes what the last step left to the tensors, which are no results of a loop from here on."""
        finals = [(tensor, self._results.value(tensor)) for tensor in self._written.values()]
        for tensor, final in finals:
            self._results.forget(tensor)
            tensor.copy_(final)


def result_of_write(func: Callable[..., Any], tensor: torch.Tensor) -> torch.Tensor | None:
    """What a function gives that writes to a tensor."""
    return None if name_of(func) == "__setitem__" else tensor
