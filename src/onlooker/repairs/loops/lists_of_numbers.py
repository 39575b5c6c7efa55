"""Lists of Python numbers that each step of a rolled loop extends by those of a tensor.

A step of a loop over numbers may make a tensor whose length is a value, and add its numbers to a list::

    ends = [0]                                        ends is [0]
    for length in lengths.tolist():                   before each step ends[-1] is a number of torch
        places = torch.arange(length) + ends[-1]
        ends.extend(places.tolist())                  after step 0: [number, part 0, its last number]
    ends = torch.tensor(ends)                         cat([tensor([0]), part 0, part 1, ...])

In place of the numbers the list gets a :class:`PartOfList`, and behind it the last number. ``ends[-1]`` in a
step is the last number of the step before, which is read from a tensor as any other number of a step: that
tensor is a state of the scan, and begins with the last number before the loop. After the loop ``torch.tensor``
of the list joins the parts of all steps. A part without numbers has no last one: such a call ends with an error.

A list with numbers that steps compute from their index becomes a tensor as well::

    torch.tensor([[i, i + 1] for i in range(n - 1)])    stack([arange(n - 1), arange(n - 1) + 1], -1)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch

from ...model_source.source_loops import lists_extended
from ...torch_internals.sizes import statically_known_true
from .step_indices import StepFloat, StepIndex

__all__ = ["NumberList", "PartOfList", "joined_numbers", "number_lists_of", "numbers_of_steps"]

#: the types of tensors that hold the numbers of any list of indices
_DTYPES = (None, torch.int64, torch.int32, torch.float32, torch.float64)


@dataclass(frozen=True, slots=True, eq=False)
class PartOfList:
    """The numbers that ``tolist()`` gives of a tensor of a step, of which ``last_of`` has the ``last``."""

    numbers: torch.Tensor
    last_of: torch.Tensor
    last: torch.SymInt


@dataclass(slots=True)
class NumberList:
    """A list that steps extend: with ``begin``, a tensor of its last number before the loop, where it has one."""

    values: list[Any]
    begin: torch.Tensor | None
    _before: list[Any] = field(init=False)
    _last: PartOfList | None = None
    #: what stands for the last number of the step before
    _stand_in: Any = None

    def __post_init__(self) -> None:
        self._before = list(self.values)

    def begin_step(self, number: Callable[[torch.Tensor], torch.SymInt]) -> None:
        """A step begins: ``number`` reads a number of it from a tensor."""
        last = self.begin if self._last is None else self._last.last_of
        if last is not None and self.begin is not None:
            self.values[-1] = self._stand_in = number(last)

    def is_extended(self, step: int) -> bool:
        """True where a step has extended the list once, and has changed nothing else of it."""
        last = self.values[-2] if len(self.values) == len(self._before) + 2 * (step + 1) else None
        if not isinstance(last, PartOfList) or self.values[-1] is not last.last:
            return False
        self._last = last
        return self.begin is None or self.values[-3] is self._stand_in

    def end(self) -> None:
        """The loop is over: the numbers from before it are what they were."""
        self.values[: len(self._before)] = self._before


def number_lists_of(frame: FrameType) -> list[NumberList]:
    """Returns the lists of local names that the steps of the loop of a frame extend, which are empty or end
    with an int.
    """
    names = lists_extended(frame.f_code.co_filename, frame.f_lineno)
    found = [value for name, value in frame.f_locals.items() if name in names]
    lists = {id(value): value for value in found if type(value) is list}.values()
    begun = [values for values in lists if not values or type(values[-1]) is int]
    return [
        NumberList(values, torch.full((1,), values[-1]) if values else None) for values in begun
    ]


def joined_numbers(
    join: Callable[..., torch.Tensor | None],
    values: Any,
    dtype: torch.dtype | None = None,
    device: Any = None,
) -> torch.Tensor | None:
    """Returns what ``torch.tensor(values)`` is where steps have extended the list, with what joins the results
    of all steps; None where they have not, or where it has other values between the parts.
    """
    if type(values) is not list or dtype not in _DTYPES:
        return None
    places = [n for n, one in enumerate(values) if isinstance(one, PartOfList)]
    if not places or len(values) < places[-1] + 2:
        return None
    begin, end = places[0], places[-1] + 2
    parts = [values[place] for place in places]
    sides = values[:begin], values[end:]
    is_whole = places == list(range(begin, end, 2)) and values[end - 1] is parts[-1].last
    if not is_whole or any(type(one) is not int for side in sides for one in side):
        return None
    before, after = ([torch.tensor(side)] if side else [] for side in sides)
    joined = join(torch.cat, [*before, *(part.numbers for part in parts), *after])
    device = torch.get_default_device() if device is None else device
    return None if joined is None else joined.to(device, dtype or torch.int64)


def numbers_of_steps(
    join: Callable[..., torch.Tensor | None],
    values: Any,
    dtype: torch.dtype | None = None,
    device: Any = None,
) -> torch.Tensor | None:
    """Returns what ``torch.tensor(values)`` is where steps of a loop that is over have computed numbers of the list
    from their index, with what joins the results of all steps; None where they have not.

    :raises NotRolledError: where the list has such numbers of some steps, or in another order
    """
    places = [n for n, one in enumerate(values) if _made_by(one)] if type(values) is list else []
    if not places:
        return None
    begin, end = places[0], places[-1] + 1
    run, sides = values[begin:end], (values[:begin], values[end:])
    loop = _made_by(run[0])[0].loop
    is_plain = all(type(one) in (int, float) for side in sides for one in side)
    if loop.is_running or len(run) != loop.n_steps or not is_plain:
        raise loop.refused(_IN_ANOTHER_WAY)
    parts = [torch.tensor(side) for side in sides]
    made = _column(join, run, loop)
    is_float = any(one.is_floating_point() for one in (*parts, made) if one.numel())
    usual = torch.get_default_dtype() if is_float else torch.int64
    whole = [one.to(dtype or usual) for one in (parts[0], made, parts[1])]
    joined = torch.cat(whole[: 3 - (not sides[1])][not sides[0] :]) if any(sides) else whole[1]
    return joined.to(torch.get_default_device() if device is None else device)


_IN_ANOTHER_WAY = "a list with numbers of its steps is read in another way than by torch.tensor"


def _made_by(value: Any) -> list[Any]:
    """The numbers of steps in an item of a list."""
    if isinstance(value, (StepIndex, StepFloat)):
        return [value]
    parts = value if isinstance(value, (list, tuple)) else ()
    return [number for part in parts for number in _made_by(part)]


def _column(join: Callable[..., torch.Tensor | None], run: list[Any], loop: Any) -> torch.Tensor:
    """The items that all steps have put at one place of a list."""
    first, kinds = run[0], {type(one) for one in run}
    if len(kinds) == 1:
        if isinstance(first, (list, tuple)) and len({len(one) for one in run}) == 1:
            columns = [_column(join, list(column), loop) for column in zip(*run, strict=True)]
            dtype = (
                torch.get_default_dtype() if any(map(torch.is_floating_point, columns)) else None
            )
            return torch.stack([column.to(dtype or torch.int64) for column in columns], -1)
        if isinstance(first, StepFloat):
            joined = join(torch.stack, [one.tensor for one in run])
            if joined is not None:
                return joined
        if isinstance(first, StepIndex) and all(one.loop is loop for one in run):
            steps = [one.step for one in run]
            is_same = all(
                statically_known_true(one.first == first.first)
                and statically_known_true(one.each == first.each)
                for one in run
            )
            places = torch.arange(loop.count)
            if is_same and steps in (sorted(steps), sorted(steps, reverse=True)):
                places = places if steps[0] <= steps[-1] else loop.count - 1 - places
                return torch.add(places * first.each, first.first)
        if type(first) in (int, float) and all(one == first for one in run):
            return torch.full((loop.count,), first)
    raise loop.refused(_IN_ANOTHER_WAY)
