"""What a loop goes over: parts of a tensor, the numbers of one, results of another loop, a range, and these together.

Each knows how many parts it has in a call, and gives the part at the index of a step::

    for x, n in zip(rows.unbind(1), lengths.tolist()):       a row of a tensor, and a number, of each step
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ...model_source.frames import begins_loop
from ...model_source.source_loops import is_copied, loop_over
from ...torch_internals.modes import WithoutFunctions
from ...torch_internals.sizes import statically_known_true
from ...torch_internals.trees import TreeSpec, tree_flatten, tree_unflatten
from .loop_results import LoopResults, ResultsOfSteps
from .step_indices import StepIndex
from .step_keys import has_shape
from .step_numbers import demanded
from .steps import Loop, NotRolledError
from .whole_rows import WholeRows, joined_again

__all__ = [
    "Blocks",
    "Listed",
    "Numbers",
    "Pieces",
    "Repeated",
    "ResultList",
    "ResultsApart",
    "SomeApart",
    "TakenApart",
    "Zipped",
    "repeated_in",
]


class GoesOver(Protocol):
    """Rolls the loops over these parts; ``rows`` are those that the model takes apart."""

    rows: WholeRows | None

    def over(self, parts: Any) -> Loop | None:
        """The steps over the parts, as for a ``range``; None where Python itself runs the loop."""

    def failed(self, error: NotRolledError) -> NotRolledError:
        """Remembers an error, which the model may catch, and gives it."""

    def lists_are_plain(self) -> AbstractContextManager[None]:
        """Inside the block ``tolist()`` is that of torch."""


class TakenApart(tuple[torch.Tensor, ...]):
    """The result of ``unbind``: parts of a tensor, of which a loop reads one a step."""

    loops: GoesOver
    whole: torch.Tensor
    dim: int
    count: Any

    def row(self, index: Any) -> Any:
        """The part at an index of a loop."""
        if self.loops.rows is not None:
            self.loops.rows.read_by_steps(tuple(super().__iter__()))
        key: Any = (*[slice(None)] * self.dim, index)
        return self.whole[key]

    def item(self, place: int) -> torch.Tensor:
        """The part at a number, from either end: torch asks whether there are as many parts."""
        return self.whole.select(self.dim, place)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, StepIndex):
            return self.row(key)
        found = super().__getitem__(key)
        if type(key) is int and self.loops.rows is not None:
            self.loops.rows.read_by_place(tuple(super().__iter__()))
            return self.item(key)
        is_known = isinstance(key, slice) and key.step in (None, 1, -1)
        some = SomeApart.of(self, key, found) if is_known and found else found
        if some is found:
            self._note_count()
        return some

    def __iter__(self) -> Iterator[Any]:
        loop = self.loops.over(self)
        if loop is None:
            self._note_count()
        return super().__iter__() if loop is None else map(self.row, loop)

    def __reversed__(self) -> Iterator[Any]:
        loop = self.loops.over(self)
        if loop is None:
            self._note_count()
            return reversed(tuple(super().__iter__()))
        return map(self.row, loop.backwards())

    def _note_count(self) -> None:
        """Notes that Python reads how many parts there are."""
        if self.loops.rows is not None:
            self.loops.rows.counted(tuple(super().__iter__()))


def _counting(name: str) -> Callable[..., Any]:
    """A method of tuples by which Python reads how many parts there are."""
    method = getattr(tuple, name)

    @functools.wraps(method)
    def read(self: TakenApart, *args: Any) -> Any:
        self._note_count()
        return method(self, *args)

    return read


for _name in ("__add__", "__mul__", "__rmul__", "__contains__", "__eq__", "__ne__", "index"):
    setattr(TakenApart, _name, _counting(_name))


class SomeApart(TakenApart):
    """Some of the parts of a tensor, as in ``parts[1:]``, or all of them backwards, as in ``parts[::-1]``."""

    _of: TakenApart
    _key: slice

    @classmethod
    def of(cls, parts: TakenApart, key: slice, found: tuple[torch.Tensor, ...]) -> Any:
        """The parts at a slice; what Python ``found`` where that is a slice backwards with bounds, or of parts of
        which the last one is shorter.
        """
        is_part = key.step == -1 and (key.start, key.stop) != (None, None)
        if is_part or isinstance(parts, Blocks):
            return found
        some = cls(found)
        some._of, some._key, some.loops, some.dim = parts, key, parts.loops, parts.dim
        return some

    @property
    def _is_backwards(self) -> bool:
        return bool(self._key.step == -1)

    @functools.cached_property
    def whole(self) -> torch.Tensor:  # type: ignore[override]
        """The tensor that has these parts, in their order or backwards."""
        if self._is_backwards:
            return self._of.whole
        key: Any = (*[slice(None)] * self.dim, self._key)
        return self._of.whole[key]

    @property
    def count(self) -> Any:
        """How many parts there are."""
        whole = self.whole
        with WithoutFunctions():  # the model reads none of these sizes
            return whole.shape[self.dim]

    def row(self, index: Any) -> Any:
        """The part at an index of a loop."""
        return super().row(index * -1 + (self.count - 1) if self._is_backwards else index)

    def item(self, place: int) -> torch.Tensor:
        """The part at a number, from either end."""
        return super().item(-1 - place if self._is_backwards else place)

    def joined(self, func: Callable[..., Any], dim: int = 0, **others: Any) -> Any:
        """What a function makes of all these parts, however many there are."""
        if others:
            return func(tuple(super().__iter__()), dim, **others)
        if self.loops.rows is not None:
            self.loops.rows.read_by_steps(tuple(super().__iter__()))
        whole = self.whole.flip(self.dim) if self._is_backwards else self.whole
        return joined_again(func, whole, self.dim, dim)


class Blocks(TakenApart):
    """Equal parts of a tensor and a shorter one after them: a loop over them has a last step by itself."""

    _last: torch.Tensor

    @classmethod
    def of(cls, equal: TakenApart, last: torch.Tensor) -> Blocks:
        """The parts of a tensor that was taken apart, and the last one."""
        blocks = cls((*tuple.__iter__(equal), last))
        blocks.loops, blocks.whole, blocks.dim = equal.loops, equal.whole, equal.dim
        blocks.count, blocks._last = equal.count + 1, last
        return blocks

    def item(self, place: int) -> torch.Tensor:
        """The part at a number, from either end; the number of the last one is how many equal parts there are."""
        if place == -1:
            return self._last
        if place == tuple.__len__(self) - 1:
            self._note_count()
            return self._last
        return super().item(place + 1 if place < 0 else place)

    def row(self, index: Any) -> Any:
        """The part at an index of a loop, or the last one at a number."""
        if not isinstance(index, StepIndex):
            return self._last
        if not index.loop.count < self.count:
            raise index.loop.refused("its last part is shorter", at_last=True, here=True)
        return super().row(index)


@dataclass(frozen=True, slots=True)
class Numbers:
    """A range of symbolic sizes that another loop goes over beside something else: ``zip(range(n), rows)``."""

    range: Loop

    @property
    def count(self) -> Any:
        """How many numbers there are."""
        return self.range.count

    def row(self, index: StepIndex) -> Any:
        """The number at an index of the other loop."""
        return index * self.range.each + self.range.first


@dataclass(frozen=True, slots=True)
class Repeated:
    """A list of one ``item`` for each step, as in ``zip(rows, [(height, width)] * len(rows))``."""

    item: Any
    count: Any

    def row(self, index: StepIndex) -> Any:
        """The item, at any index."""
        del index
        return self.item


@dataclass(frozen=True, slots=True)
class Zipped:
    """What ``zip`` goes over: ``parts`` of which each step reads one."""

    parts: Sequence[Any]
    count: Any

    @classmethod
    def of(cls, parts: Sequence[Any]) -> Zipped | None:
        """As many of the parts as the shortest has; None where that is unknown."""
        for one in parts:
            if all(statically_known_true(one.count <= other.count) for other in parts):
                return cls(parts, one.count)
        return None

    def row(self, index: StepIndex) -> tuple[Any, ...]:
        """The parts at an index of a loop."""
        return tuple(one.row(index) for one in self.parts)


def repeated_in(parts: Any) -> Any:
    """The item of each step where all steps have the same one; of a tuple, None stands for a part that differs."""
    if isinstance(parts, Zipped):
        return tuple(map(repeated_in, parts.parts))
    return parts.item if isinstance(parts, Repeated) else None


class ResultsApart:
    """A list of the results of a loop that another loop goes over, one a step: tensors, or containers of them.
    Before and after those of the steps there may be others like them, as ``states = [begin]``.
    """

    def __init__(self, wholes: Sequence[torch.Tensor], spec: TreeSpec, count: Any) -> None:
        self._wholes, self._spec, self.count = wholes, spec, count

    @classmethod
    def of(cls, values: Sequence[Any], results: LoopResults) -> ResultsApart | None:
        """The results of all steps in a row, with what stands beside them; None for other values."""
        items = [tree_flatten(value) for value in tuple(iter(values))]
        (_, spec), runs = items[0] if items else ([], None), list[ResultsOfSteps]()
        if spec is None or any(other != spec for _, other in items):
            return None
        wholes: list[torch.Tensor] = []
        for parts in zip(*(leaves for leaves, _ in items), strict=True):
            run = results.in_a_row(parts)
            if run is None or run.place not in run.loop.stacked:
                return None
            whole, beside = run.stacked(), [[*parts[: run.begin]], [*parts[run.end :]]]
            if any(not _is_like(results.value(one), whole) for side in beside for one in side):
                return None
            before, after = ([results.value(one).unsqueeze(0) for one in side] for side in beside)
            wholes.append(torch.cat([*before, whole, *after]) if before or after else whole)
            runs.append(run)
        if not runs or any(_place_of(one) != _place_of(runs[0]) for one in runs):
            return None
        one = runs[0]
        return cls(wholes, spec, one.count + one.begin + len(items) - one.end)

    def row(self, index: StepIndex) -> Any:
        """The result at an index of the other loop."""
        return tree_unflatten([whole[index] for whole in self._wholes], self._spec)


def _place_of(run: ResultsOfSteps) -> tuple[Any, ...]:
    """Which steps of which loop results are of, and where they stand."""
    return id(run.loop), run.first, run.last, run.begin


def _is_like(value: Any, whole: torch.Tensor) -> bool:
    """True for a tensor that may stand beside the results of steps."""
    is_shaped = has_shape(value, whole.shape[1:])
    return is_shaped and (value.dtype, value.device) == (whole.dtype, whole.device)


class ResultList(list[Any]):
    """A list with a result of each step of a loop, over which another loop goes: over those of all steps."""

    #: the index and the result of each step of a loop over such a list; a static method of a class made for it, so
    #: that nobody takes what the loops remember for a part of the list
    steps_over: Callable[[Any], Iterator[tuple[StepIndex, Any]] | None]

    def __iter__(self) -> Iterator[Any]:
        steps = self.steps_over(self) if begins_loop(sys._getframe(1)) else None
        return super().__iter__() if steps is None else (result for _, result in steps)

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        return type(self)(found) if isinstance(place, slice) else found

    def __reversed__(self) -> Iterator[Any]:
        backwards, frame = super().__reversed__(), sys._getframe(1)
        is_loop = loop_over(frame.f_code, frame.f_lasti) is not None
        steps = self.steps_over(backwards) if is_loop else None
        return backwards if steps is None else (result for _, result in steps)


class Listed(tuple[Any, ...]):
    """What ``tolist()`` gives of a tensor with an unknown number of rows: numbers, of which a loop reads
    those of one row a step. The tuple itself is empty, and whatever else reads it ends the trace.
    """

    #: a function, so that nobody takes what the loops remember for a part of the model
    loops: Callable[[], GoesOver]
    rows: torch.Tensor
    line: str

    @classmethod
    def of(cls, loops: GoesOver, rows: torch.Tensor, line: str) -> Listed:
        """The numbers of these rows, which a line of the model asks for."""
        listed = cls()
        listed.loops, listed.rows, listed.line = lambda: loops, rows, line
        return listed

    @property
    def count(self) -> Any:
        """The number of rows."""
        return self.rows.shape[0]

    def row(self, index: StepIndex) -> Any:
        """The numbers of the row at an index of a loop, or its number."""
        row = self.rows[index]
        return row.item() if row.ndim == 0 else [one.item() for one in row.unbind(0)]

    def __iter__(self) -> Iterator[Any]:
        loop = self.loops().over(self)
        return iter(self.plain()) if loop is None else map(self.row, loop)

    def __reversed__(self) -> Iterator[Any]:
        loop = self.loops().over(self)
        return reversed(self.plain()) if loop is None else map(self.row, loop.backwards())

    def plain(self) -> Any:
        """The list itself."""
        with self.loops().lists_are_plain():
            return list(self.rows.tolist())

    def as_tensor(self, dtype: torch.dtype | None = None, device: Any = None) -> torch.Tensor:
        """What ``torch.tensor`` makes of the list."""
        device = torch.get_default_device() if device is None else device
        is_bool = self.rows.dtype is torch.bool
        return self.rows.to(device, dtype or (torch.bool if is_bool else torch.int64))

    def refused(self, *_: Any) -> Any:
        """Raises what ends the trace: the list is read in another way than by a loop."""
        failure = NotRolledError(self.line, "the list is read in another way than by a loop")
        raise self.loops().failed(failure)

    def __len__(self) -> int:
        if is_copied(sys._getframe(1)):  # ``tuple`` and ``list`` go on without a length
            raise TypeError("the parts are those of all steps")
        return int(self.refused())

    __getitem__ = __contains__ = __add__ = __radd__ = __mul__ = __rmul__ = refused
    __eq__ = __ne__ = __lt__ = __gt__ = __le__ = __ge__ = __hash__ = __bool__ = refused


class Pieces(Listed):
    """What ``torch.split(whole, lengths.tolist())`` gives: parts of a tensor, of which a loop reads one a
    step.
    """

    _whole: torch.Tensor
    _listed: Listed
    _begins: Listed
    _dim: int

    @classmethod
    def parts(cls, whole: torch.Tensor, listed: Listed, dim: int, line: str) -> Pieces:
        """The parts of a tensor, of these lengths."""
        pieces, lengths = cls(), listed.rows
        pieces.loops, pieces.rows, pieces.line = listed.loops, lengths, line
        pieces._whole, pieces._listed, pieces._dim = whole, listed, dim
        pieces._begins = Listed.of(listed.loops(), lengths.cumsum(0) - lengths, line)
        demanded(lengths.sum().item() == whole.shape[dim])
        return pieces

    def row(self, index: StepIndex) -> Any:
        """The part at an index of a loop."""
        begin, length = self._begins.row(index), self._listed.row(index)
        return torch.narrow(self._whole, self._dim, begin, length)

    def joined(self, func: Callable[..., Any], dim: int = 0, **others: Any) -> Any:
        """What a function makes of all parts."""
        if func is torch.stack or others or dim % self._whole.ndim != self._dim:
            return func(self.plain(), dim, **others)
        return torch.cat([self._whole], dim)

    def plain(self) -> Any:
        """The parts themselves."""
        return torch.split(self._whole, self._listed.plain(), self._dim)
