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
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch

from ...model_source.source_loops import lists_extended

__all__ = ["NumberList", "PartOfList", "joined_numbers", "number_lists_of"]

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
