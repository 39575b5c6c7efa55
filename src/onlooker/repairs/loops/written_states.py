"""States that the steps of a loop write to: ``score += row`` changes one tensor in every step.

A ``scan`` gives each step a new state, so a step begins with a copy of the tensor, and writes to that::

    score = start[labels[:, 0]]            recorded of step 0        of step 1 and later
    for t in range(1, x.shape[1]):         0: clone(outer score)     0: clone(before #0)
        score += x[:, t]                   1: #0 += rows of x        1: #0 += rows of x

After the loop the tensor gets what the last step left. A step that reads the same memory by another
tensor, as ``score[0]``, would read what was there before the write: such a loop is no scan.

A step may write to a row of its own, too: ``result[t, :n] = part``. It reads that row, writes to a copy of it, and the
copies of all steps are the rows after the loop. Nobody else may read or write the tensor in a step: not another row
of it, and no other tensor with its memory.

Where steps write one row and read others, as in ``y[t] = y[t - 1] + x[t]``, the tensor is such a state, and each
row that is read a copy. For Python it is a view: so nobody may read it after a write that may be to this row.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ...torch_internals.modes import WithoutFunctions
from ...torch_internals.tensor_marks import memory_of
from .loop_results import LoopResults
from .step_indices import StepIndex
from .steps import Loop, Rows, name_of

__all__ = ["WrittenStates", "result_of_write"]

_OTHER_ROWS = "a step reads or writes another row of a tensor that steps write to"
_SHARED = "a step writes to a tensor whose memory it reads by another one"


class WrittenStates:
    """The tensors from before a loop that its steps write to, by the memory of each."""

    def __init__(self, results: LoopResults) -> None:
        self._results = results
        self._written: dict[int, torch.Tensor] = {}
        #: the tensors by which steps read each memory from before the loop
        self._read: dict[int, torch.Tensor] = {}
        self._shared: dict[int, torch.UntypedStorage] = {}
        #: the rows that steps write
        self._rows: dict[int, Rows] = {}
        #: copies of rows of written states, by their memory: the memory of the state, the index, None for rows of which
        #: each step has other numbers, and what keeps the address
        self._copies: dict[int, tuple[int, StepIndex | None, torch.UntypedStorage]] = {}
        #: the memory of copies whose rows may have been written since
        self._stale: set[int] = set()
        #: what stands for the row of the step that runs, and True for a copy of it
        self._row_of_step: dict[int, tuple[torch.Tensor, bool]] = {}

    def begin_row(self, loop: Loop, rows: Rows) -> None:
        """A step writes to its row of a tensor.

        :raises NotRolledError: where steps read or write the memory in another way
        """
        tensor, memory = rows.tensor, memory_of(rows.tensor)
        is_other = self._rows.setdefault(memory, rows) != rows
        if is_other or memory in self._read or memory in self._written or memory in self._shared:
            raise loop.refused(_OTHER_ROWS)
        if _overlaps(tensor):
            raise loop.refused("a step writes to rows that share their memory")

    def has_row(self, rows: Rows) -> bool:
        """True where the step that runs has written to this row."""
        memory = memory_of(rows.tensor)
        return memory in self._row_of_step and self._rows[memory] == rows

    def row(self, rows: Rows) -> tuple[torch.Tensor | None, bool]:
        """What stands for the row of the step, and True for a copy, to which it may write."""
        return self._row_of_step.get(memory_of(rows.tensor), (None, False))

    def keep_row(self, rows: Rows, row: torch.Tensor, *, is_copy: bool = False) -> None:
        """A tensor stands for the row of the step from here on."""
        self._row_of_step[memory_of(rows.tensor)] = row, is_copy

    def forget_rows(self) -> None:
        """A step is over."""
        self._row_of_step.clear()

    def is_written(self, tensor: torch.Tensor) -> bool:
        """True for a state that steps write to."""
        return self._written.get(memory_of(tensor)) is tensor

    def keep_copy(self, state: torch.Tensor, index: StepIndex | None, row: torch.Tensor) -> None:
        """A tensor is a copy of the row of a written state at an index, or of all of it."""
        self._copies[memory_of(row)] = memory_of(state), index, row.untyped_storage()

    def writes(self, state: torch.Tensor, index: StepIndex | None = None) -> None:
        """A step writes to a state, or to its row at an index: copies of rows that this step or a later one may
        write are not what Python reads from here on.
        """
        for copy, (memory, read, _) in self._copies.items():
            is_apart = index is not None and read is not None and read.is_behind(index)
            if memory == memory_of(state) and not is_apart:
                self._stale.add(copy)

    def check(self, loop: Loop, tensor: torch.Tensor) -> None:
        """Passes for a tensor that is what Python reads.

        :raises NotRolledError: for a copy of a row that may have been written since
        """
        if self._stale and memory_of(tensor) in self._stale:
            raise loop.refused(
                "a step reads a row of a tensor after a write that may be to this row"
            )

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
        is_read = self._read.get(memory, tensor) is not tensor
        if memory in self._shared or memory in self._rows or is_read:
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
        if memory in self._rows:
            raise loop.refused(_OTHER_ROWS)
        if self._read.setdefault(memory, tensor) is not tensor:
            self._shared[memory] = tensor.untyped_storage()

    def makes(
        self, loop: Loop, results: Iterable[torch.Tensor], given: Iterable[torch.Tensor]
    ) -> None:
        """A step makes tensors of others, which may share memory with them.

        :raises NotRolledError: for a view of a tensor that steps write to
        """
        memories = {memory_of(tensor) for tensor in given}
        copies = {memory_of(row) for row, is_copy in self._row_of_step.values() if is_copy}
        for result in results:
            memory = memory_of(result)
            if memory in memories and (memory in copies or memory in self._copies):
                loop.views_of_rows.add(self._results.place_of(result))
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


def _overlaps(tensor: torch.Tensor) -> bool:
    """True for a tensor two of whose elements have one memory for sure, as after ``expand`` and ``unfold``:
    where a stride ends within what another dimension reaches.
    """
    with WithoutFunctions():  # the model reads none of these sizes
        if not tensor._is_view():  # torch asks about sizes for the strides of others
            return False
        dims = [d for d in zip(tensor.shape, tensor.stride(), strict=True) if type(d[1]) is int]
    # a symbolic size may be 2
    reach = [(stride, stride * (size - 1 if type(size) is int else 1)) for size, stride in dims]
    is_repeated = any(stride == 0 and (type(size) is not int or size != 1) for size, stride in dims)
    pairs = itertools.permutations(reach, 2)
    return is_repeated or any(other[0] <= one[0] <= other[1] for one, other in pairs)


def result_of_write(func: Callable[..., Any], tensor: torch.Tensor) -> torch.Tensor | None:
    """What a function gives that writes to a tensor."""
    return None if name_of(func) == "__setitem__" else tensor
