"""Tensors that the steps of rolled loops gave, and what stands for them after the loop.

Of a loop that ran steps 0 to 130, only the result of step 130 may be read after it, as that of the last
step, and all results in a row, as in ``torch.stack(rows, 1)``.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .lists_of_numbers import PartOfList
from .steps import Loop, Place, StepIndex

__all__ = ["LoopResults", "ResultsOfSteps"]


@dataclass(slots=True)
class ResultOrigin:
    """The step and the operation that gave a tensor of a loop."""

    tensor: Callable[[], torch.Tensor | None]
    loop: Loop
    step: int
    place: Place


@dataclass(frozen=True, slots=True)
class ResultsOfSteps:
    """The results of all steps of a loop in a row, from ``begin`` on."""

    loop: Loop
    place: Place
    begin: int
    backwards: bool


class LoopResults:
    """The tensors that steps of loops gave; ``n_steps`` were run of each loop."""

    def __init__(self, n_steps: int) -> None:
        self._n_steps = n_steps
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
                found.setdefault(origin.place, [None] * self._n_steps)[origin.step] = tensor
        return found

    def value(self, leaf: Any) -> Any:
        """Returns the value that stands for a tensor of the last step of a loop; other values as
        they are.

        :raises NotRolledError: for a tensor of one of the steps before
        """
        if isinstance(leaf, StepIndex):
            raise leaf.loop.refused("its index is read after it")
        self.check_list([leaf])
        if isinstance(leaf, (torch.SymInt, torch.SymBool)):
            self._check_number(leaf)
        found = self.origin_of(leaf) if isinstance(leaf, torch.Tensor) else None
        if found is None or found.loop.is_running:
            return leaf
        finals, stacked = found.loop.finals, found.loop.stacked
        if found.step != self._n_steps - 1 or found.place not in {**finals, **stacked}:
            raise found.loop.refused("the result of one of its steps is read after it")
        if found.place not in finals:
            finals[found.place] = stacked[found.place].select(0, -1)
        return finals[found.place]

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

    def in_a_row(self, values: Sequence[Any]) -> ResultsOfSteps | None:
        """Finds the results of all steps of a loop in a row among some values."""
        for begin in range(len(values) - self._n_steps + 1):
            found = [self.origin_of(value) for value in values[begin : begin + self._n_steps]]
            one = found[0]
            if one is None or any(f is None or f.loop is not one.loop for f in found):
                continue
            steps = [f.step for f in found if f is not None and f.place == one.place]
            order = list(range(self._n_steps))
            if steps in (order, order[::-1]):
                return ResultsOfSteps(one.loop, one.place, begin, steps != order)
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
        stacked = run.loop.stacked[run.place]
        stacked = stacked.flip(0) if run.backwards else stacked
        is_stack = func is torch.stack
        dim = dim % (stacked.ndim if is_stack else stacked.ndim - 1)
        whole = stacked.movedim(0, dim)
        before, after = tensors[: run.begin], tensors[run.begin + self._n_steps :]
        if not is_stack:
            whole = whole.flatten(dim, dim + 1)
        if not before and not after:
            return whole
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
        if run is None or len(tensors) != self._n_steps or run.backwards:
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
        if func is torch.stack or dim % whole.ndim != place or run.backwards:
            return None
        before, after = tensors[: run.begin], tensors[run.begin + self._n_steps :]
        whole = whole.movedim(0, place)
        if not before and not after:
            return whole
        return torch.cat([*map(self.value, before), whole, *map(self.value, after)], dim)
