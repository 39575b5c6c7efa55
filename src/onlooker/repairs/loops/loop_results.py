"""Tensors that the steps of rolled loops gave, and what stands for them after the loop.

Of a loop that ran steps 0 to 130, the result of step 130 may be read after it, as that of the last step, and all
results in a row, as in ``torch.stack(rows, 1)``. In the steps 0 to 130 of another loop ``rows[t]`` is the result of
each step in turn, so it is the row ``t`` of all results; ``rows[n - 1 - t]`` is that of step 130 first.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...torch_internals.sizes import statically_known_true
from .lists_of_numbers import PartOfList
from .step_indices import ItemRead, StepIndex
from .steps import Loop, Place

__all__ = ["LoopResults", "ResultsOfSteps", "one_after_another"]

#: of so many steps at either end of a loop a list may lack the results: ``results[1:]``, ``results[:-1]``
_MOST_LEFT_OUT = 3


@dataclass(slots=True)
class ResultOrigin:
    """The step and the operation that gave a tensor of a loop."""

    tensor: Callable[[], torch.Tensor | None]
    loop: Loop
    step: int
    place: Place

    @property
    def ends(self) -> dict[Place, torch.Tensor] | None:
        """What stands for the results of its step, the first or the last one; None for another step."""
        if self.step == self.loop.n_steps - 1:
            return self.loop.finals
        return None if self.step else self.loop.firsts


@dataclass(frozen=True, slots=True)
class ResultsOfSteps:
    """The results of the steps of a loop in a row, from ``begin`` on. ``first`` is the number of steps at the begin
    of the loop whose results are left out, ``last`` that at its end.
    """

    loop: Loop
    place: Place
    begin: int
    backwards: bool
    first: int = 0
    last: int = 0

    @property
    def end(self) -> int:
        """Where they end among the values."""
        return self.begin + self.loop.n_steps - self.first - self.last

    @property
    def count(self) -> Any:
        """How many there are in a call."""
        return self.loop.count - self.first - self.last

    @property
    def is_whole(self) -> bool:
        """True for the results of all steps, in their order."""
        return not (self.first or self.last or self.backwards)

    def stacked(self) -> torch.Tensor:
        """The results one after another, along the first dimension."""
        whole = self.loop.stacked[self.place]
        if self.first or self.last:
            whole = whole.narrow(0, self.first, self.count)
        return whole.flip(0) if self.backwards else whole


class LoopResults:
    """The tensors that steps of loops gave."""

    def __init__(self) -> None:
        self._origins: dict[int, ResultOrigin] = {}
        #: the loops whose steps read numbers
        self.loops: list[Loop] = []

    def __bool__(self) -> bool:
        return bool(self._origins) or bool(self.loops)

    def add(self, tensor: torch.Tensor, loop: Loop, place: Place) -> None:
        """Notes a result of the step that runs."""
        self._origins[id(tensor)] = ResultOrigin(
            weakref.ref(tensor), loop, len(loop.steps) - 1, place
        )

    def origin_of(self, tensor: Any) -> ResultOrigin | None:
        """Returns the step that gave a tensor; None for a tensor of no loop."""
        found = self._origins.get(id(tensor))
        return found if found is not None and found.tensor() is tensor else None

    def place_of(self, tensor: Any) -> Place:
        """The number of the operation that gave a tensor of a loop, and that of the result."""
        return self._origins[id(tensor)].place

    def forget(self, tensor: torch.Tensor) -> None:
        """A tensor is no result of a loop from here on."""
        self._origins.pop(id(tensor), None)

    def alive(self, loop: Loop) -> dict[Place, list[torch.Tensor | None]]:
        """The results that somebody still has: of each step, None where nobody has it."""
        found: dict[Place, list[torch.Tensor | None]] = {}
        for origin in list(self._origins.values()):
            tensor = origin.tensor() if origin.loop is loop else None
            if tensor is not None:
                found.setdefault(origin.place, [None] * loop.n_steps)[origin.step] = tensor
        return found

    def value(self, leaf: Any) -> Any:
        """Returns the value that stands for a tensor of the last step of a loop, or of the first one in a list
        with those of all; other values as they are.

        :raises NotRolledError: for a tensor of another step
        """
        if isinstance(leaf, StepIndex):
            raise leaf.loop.refused("its index is read after it")
        self.check_list([leaf])
        if isinstance(leaf, (torch.SymInt, torch.SymBool)):
            self._check_number(leaf)
        found = self.origin_of(leaf) if isinstance(leaf, torch.Tensor) else None
        if found is None or found.loop.is_running:
            return leaf
        loop, stacked = found.loop, found.loop.stacked
        place, behind = found.place, loop.n_steps - 1 - found.step
        while behind and place in loop.copies:
            place, behind = loop.copies[place], behind - 1
        if not behind and place != found.place and place in loop.finals:
            return loop.finals[place]
        ends = found.ends
        if ends is None or found.place not in {**ends, **stacked}:
            raise loop.refused("the result of one of its steps is read after it")
        if found.place not in ends:
            ends[found.place] = stacked[found.place].select(0, -1 if found.step else 0)
        return ends[found.place]

    def end_of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """What stands for a tensor at an end of a list with the results of a loop; None for others."""
        found = self.origin_of(tensor)
        ends = None if found is None else found.ends
        return None if found is None or ends is None else ends.get(found.place)

    def keep_ends(self) -> None:
        """Reads the first and the last item of lists with results before another loop begins, whose steps the
        trace does not see.
        """
        for origin in list(self._origins.values()):
            tensor = None if origin.loop.is_running else origin.tensor()
            is_end = origin.ends is not None and origin.place in origin.loop.stacked
            if is_end and tensor is not None:
                self.value(tensor)

    def check_list(self, values: Sequence[Any]) -> None:
        """Passes for values without numbers that a step has added to a list.

        :raises NotRolledError: for others
        """
        for part in values:
            if isinstance(part, PartOfList):
                loop = self._origins[id(part.last_of)].loop
                raise loop.refused("a list of numbers is read in another way than by torch.tensor")

    def _check_number(self, number: torch.SymInt | torch.SymBool) -> None:
        symbols = number.node.expr.free_symbols
        for loop in self.loops if symbols else ():
            if not loop.is_running and loop.numbers and not symbols.isdisjoint(loop.numbers):
                raise loop.refused("a number of one of its steps is read after it")

    def index_of(self, read: ItemRead, item: ResultOrigin, step: int) -> StepIndex:
        """The index among the results of all steps for an item that a step of another loop has read from a
        list, which may begin with something else, and may have the results backwards.

        :raises NotRolledError: where that is unknown
        """
        loop, made = read.index.loop, item.loop
        steps = [one.step for one in map(self.origin_of, read.beside) if one and one.loop is made]
        order = steps[-1] - steps[0]
        if abs(order) != len(steps) - 1 or not order:
            raise loop.refused("an item of a list is read that is not among all results of a loop")
        each = read.index.each if order > 0 else -read.index.each
        begin: Any = item.step - each * step
        if (read.index.each < 0) != (order < 0):
            # places of the list that count from its end, or results that do
            begin = made.count - (made.n_steps - begin)
        if read.index.each < 0:
            distance = loop.n_steps - made.n_steps
            if not statically_known_true(loop.count - made.count == distance):
                raise loop.refused("a list is read backwards that has another number of items")
        return StepIndex.of(loop, begin, each)

    def in_a_row(self, values: Sequence[Any]) -> ResultsOfSteps | None:
        """Finds the results of the steps of a loop in a row among some values."""
        origins = [self.origin_of(value) for value in values]
        begin = 0
        while begin < len(origins):
            end = _end_of_row(origins, begin)
            one, last = origins[begin], origins[end - 1]
            if one is not None and last is not None:
                least, greatest = sorted((one.step, last.step))
                n_after = one.loop.n_steps - 1 - greatest
                if max(least, n_after) <= _MOST_LEFT_OUT:
                    backwards = last.step < one.step
                    return ResultsOfSteps(one.loop, one.place, begin, backwards, least, n_after)
            begin = end
        return None

    def joined(
        self, func: Callable[..., Any], tensors: Any, dim: int = 0, **others: Any
    ) -> torch.Tensor | None:
        """Joins tensors, with the results of all steps as one of them; None where those are not
        among them.
        """
        run = self.in_a_row(tensors) if isinstance(tensors, (list, tuple)) and not others else None
        if run is not None and run.place in run.loop.joined:
            return self._joined_parts(func, tensors, dim, run)
        if run is None or run.place not in run.loop.stacked:
            return None
        stacked = run.stacked()
        is_stack = func is torch.stack
        dim = dim % (stacked.ndim if is_stack else stacked.ndim - 1)
        whole = stacked.movedim(0, dim) if is_stack else one_after_another(stacked, dim)
        before, after = tensors[: run.begin], tensors[run.end :]
        if not before and not after:
            # others may hold the tensor with these rows
            are_rows = run.loop.steps[-1][run.place[0]].rows is not None
            return whole.clone() if are_rows else whole
        parts = [
            [value.unsqueeze(dim) if is_stack else value for value in map(self.value, side)]
            for side in (before, after)
        ]
        return torch.cat([*parts[0], whole, *parts[1]], dim)

    def padded(
        self,
        tensors: Any,
        batch_first: bool = False,
        padding_value: float = 0.0,
        padding_side: str = "right",
    ) -> torch.Tensor | None:
        """The results of all steps as ``pad_sequence`` fills them up; None for other tensors."""
        run = self.in_a_row(tensors) if isinstance(tensors, (list, tuple)) else None
        if run is None or len(tensors) != run.loop.n_steps or not run.is_whole:
            return None
        joined = run.loop.joined.get(run.place)
        whole = run.loop.stacked.get(run.place)  # results of one length
        if joined is not None and not joined.dim:
            whole = joined.padded(padding_value, padding_side)
        if whole is None:
            return None
        return whole if batch_first else whole.transpose(0, 1)

    def _joined_parts(
        self, func: Callable[..., Any], tensors: Any, dim: int, run: ResultsOfSteps
    ) -> torch.Tensor | None:
        """The results of all steps, whose lengths are values, in the dimension in which they are joined."""
        joined = run.loop.joined[run.place]
        whole, place = joined.whole, joined.dim
        if func is torch.stack or dim % whole.ndim != place or not run.is_whole:
            return None
        before, after = tensors[: run.begin], tensors[run.end :]
        whole = whole.movedim(0, place)
        if not before and not after:
            return whole
        return torch.cat([*map(self.value, before), whole, *map(self.value, after)], dim)


def one_after_another(results: torch.Tensor, dim: int) -> torch.Tensor:
    """The results along the first dimension, one after another in their dimension ``dim``."""
    if not dim:
        return results.flatten(0, 1)
    # of a tensor with gaps torch asks whether there is one step
    whole = results.movedim(0, dim).clone(memory_format=torch.contiguous_format)
    return whole.flatten(dim, dim + 1)


def _end_of_row(origins: Sequence[ResultOrigin | None], begin: int) -> int:
    """Where results of one operation end that begin at a place, each a step after the one before, or each a
    step before it.
    """
    end, each = begin + 1, 0
    while end < len(origins):
        distance = _steps_between(origins[end - 1], origins[end])
        if abs(distance) != 1 or each not in (0, distance):
            break
        each, end = distance, end + 1
    return end


def _steps_between(before: ResultOrigin | None, now: ResultOrigin | None) -> int:
    """The number of steps between two results of one operation; 0 for other results."""
    if before is None or now is None:
        return 0
    is_same = now.loop is before.loop and now.place == before.place
    return now.step - before.step if is_same else 0
