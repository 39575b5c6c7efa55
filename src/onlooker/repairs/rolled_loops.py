"""Python loops over an axis as one ``scan`` of torch: one graph for all numbers of steps.

A trace runs every step of ``for t in range(x.shape[1])``, so its graph holds for one number of
steps. While the block of :class:`RolledLoops` lasts, such a loop runs some steps on tensors without
values, out of sight of the trace. What a step computes is compared with every other step: the same
functions, on constants and tensors that stay, on rows of tensors at the index of the step, and on
results of the same step or of the one before. Then the loop is ``scan`` with this step as its body,
whatever the number of steps; else :class:`NotRolledError` says why not, with the line, and the loop
is traced step by step as before.

An example, with ``x`` of the shape (batch, length, width) and ``h`` of (batch, width)::

    for t in range(x.shape[1]):           recorded of step 0    of step 1             of step 2 and later
        row = x[:, t]                     0: rows of x          0: rows of x          as step 1
        h = torch.tanh(row + h)           1: add(#0, outer h)   1: add(#0, before #2) as step 1
        rows.append(h)                    2: tanh(#1)           2: tanh(#1)           as step 1
    return torch.stack(rows, 1), h

``#1`` is the result of operation 1 in the same step, ``before #2`` that of operation 2 in the step before.
Step 0 differs from step 1 in one place alone: it has a tensor from outside where the others have
``before #2``. So ``#2`` is carried, and begins with that tensor. The loop becomes::

    def step(h, row):
        h = torch.tanh(row + h)
        return h, h.clone()               what is carried; what each step leaves behind

    last, all_rows = scan(step, h, x.movedim(1, 0))

``torch.stack(rows, 1)`` joins the results of all steps in their order, so it is ``all_rows.movedim(0, 1)``;
``h`` after the loop is that of the last step, ``last``. A result of any other step, read alone, raises.

The index is no int: it is added to, and reads rows, and whatever else is done with it raises. So a
loop whose path hangs on the index, or on a number that it counts, is never rolled.

What Python keeps from step to step, a count in an attribute, a set, an iterator, may change a step that
comes later, or what comes after the loop. So all that the model and its frames hold is compared: but for
results, it must be after the last step what it was after the first one, and lists of results must be
read as a whole (:mod:`onlooker.repairs.loop_lists`). Besides, the graph is proven for as many steps as were
compared, twice as many as any watched call has, and at least 131: a decision of the trace says so, and
more steps are refused.

The shapes of a step are those of the second one, wherever it does the same: they are not computed
again, and a ``scan`` whose state changes its shape is refused. In a trial of a graph
(:mod:`onlooker.trace.operator_trials`) the run of the model has the loops rolled that the trace had.

Upstream: https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_higher_order_ops/scan.py
"""

from __future__ import annotations

import collections
import contextlib
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType, GeneratorType
from typing import Any

import torch

from ..model_source.frames import is_code_of_model, is_own_code
from ..model_source.lines import line_of
from ..model_source.source_tests import tree_of
from ..observing.reach import Snapshot
from ..torch_internals.sizes import statically_known_true
from ..torch_internals.tracing import disable_proxy_modes_tracing, scan_op
from .loop_lists import counted_by
from .repair import Attempt, Repair, Retry
from .repeated_operators import Blank
from .size_ints import RangeOfSizes, length_of
from .trace_mode import Reader
from .whole_rows import WholeRows, is_about

__all__ = ["FEWEST_STEPS", "MOST_STEPS", "ROLLED_LOOPS", "NotRolledError", "RolledLoops", "Rolling"]

#: the fewest steps of a loop that are compared, and the most; no numbers that a model decides by
FEWEST_STEPS, MOST_STEPS = 131, 1031
_SPLITS = (torch.unbind, torch.Tensor.unbind)
_JOINS = (torch.stack, torch.cat, torch.concat, torch.concatenate)
_READS_VALUES = {
    *(torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.equal, torch.equal, torch.allclose),
    *(torch.Tensor.__bool__, torch.Tensor.__int__, torch.Tensor.__float__, torch.Tensor.__index__),
}
_CONTEXTS = ("autocast", "set_grad_enabled")
_SUMS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "matmul")
_WRITING = {"__setitem__", *(f"__i{name}__" for name in _SUMS)}


class NotRolledError(Exception):
    """A loop that is no ``scan``: ``line`` is the line of the model, ``reason`` why."""

    def __init__(self, line: str, reason: str) -> None:
        super().__init__(f"the loop at {line} is no scan of torch: {reason}")
        self.line, self.reason = line, reason


@dataclass(frozen=True, slots=True)
class Rolling:
    """The lines of the loops that a trace rolled, and how many steps were compared."""

    lines: tuple[str, ...] = ()
    n_steps: int = FEWEST_STEPS


@dataclass(frozen=True, slots=True, eq=False)
class _Index:
    """The index of a step: ``first + each * step``. It is no int, so nothing decides by it."""

    loop: _Loop
    first: Any
    each: int

    def __add__(self, other: Any) -> _Index:
        return _Index(self.loop, self.first + self._number(other), self.each)

    def __sub__(self, other: Any) -> _Index:
        return _Index(self.loop, self.first - self._number(other), self.each)

    def __rsub__(self, other: Any) -> _Index:
        return _Index(self.loop, self._number(other) - self.first, -self.each)

    def __neg__(self) -> _Index:
        return _Index(self.loop, -self.first, -self.each)

    __radd__ = __add__

    def _number(self, value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, (int, torch.SymInt)):
            self._decides()
        return value

    def _decides(self, *_: Any) -> Any:
        raise self.loop.refused("what a step does depends on its index")

    __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __index__ = __int__ = __float__ = _decides
    __mul__ = __rmul__ = __mod__ = __rmod__ = __floordiv__ = __truediv__ = __pow__ = _decides
    __eq__ = __hash__ = __str__ = __format__ = _decides


@dataclass(frozen=True, slots=True)
class _Constant:
    kind: type
    value: Any


@dataclass(frozen=True, slots=True)
class _Size:
    """A symbolic size, by its expression."""

    expression: str
    value: Any = field(compare=False)


@dataclass(frozen=True, slots=True)
class _Outer:
    """A tensor that was there before the loop."""

    number: int
    tensor: torch.Tensor = field(compare=False)


@dataclass(frozen=True, slots=True)
class _Result:
    """A tensor that a step computes: of the same step, or of the one ``before``."""

    operation: int
    leaf: int
    before: bool = False

    @property
    def place(self) -> tuple[int, int]:
        """Which result of which operation of a step it is."""
        return self.operation, self.leaf


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of a tensor, one a step: those that ``entries``, with the index among them, read.

    ``dim`` is the dimension of the tensor that the index is for, ``place`` that of the rows.
    """

    number: int
    key: Any
    tensor: torch.Tensor = field(compare=False)
    entries: tuple[Any, ...] = field(compare=False)
    index: _Index = field(compare=False)
    dim: int
    place: int

    def whole(self) -> torch.Tensor:
        """A view of the tensor with the rows of all steps, in the order of their indices."""
        entries = tuple(slice(None) if isinstance(e, _Index) else e for e in self.entries)
        return self._cut()[entries]

    def of_steps(self) -> torch.Tensor:
        """The rows in the order of the steps, along the first dimension."""
        rows = self.whole().movedim(self.place, 0)
        return rows.flip(0) if self.index.each < 0 else rows

    def of_first_index(self) -> torch.Tensor:
        """One row, for its shape."""
        return self.tensor[tuple(0 if isinstance(e, _Index) else e for e in self.entries)]

    def _cut(self) -> torch.Tensor:
        size, count = self.tensor.shape[self.dim], self.index.loop.count
        first, each = self.index.first, self.index.each
        if isinstance(first, int) and first < 0:
            first = first + size
        if each < -1:
            raise self.index.loop.refused("rows are read backwards in larger steps")
        if each > 1:
            entries = [slice(None)] * self.dim
            index = (*entries, slice(first, first + each * (count - 1) + 1, each))
            return self.tensor[index]
        begin = first if each == 1 else first - (count - 1)
        if statically_known_true(begin == 0) and statically_known_true(size == count):
            return self.tensor
        return self.tensor.narrow(self.dim, begin, count)


@dataclass(frozen=True, slots=True)
class _Operation:
    """One function of a step with its arguments, or rows that are read, or ``written``."""

    function: Callable[..., Any] | None
    arguments: Any = None
    rows: _Rows | None = None
    written: _Result | None = None

    @property
    def writes(self) -> bool:
        """True where the function writes to an argument."""
        return self.function is not None and _writes(self.function, self.arguments[1])


@dataclass(frozen=True, slots=True)
class _Blanks:
    """The shapes of the results of an operation; ``kind`` is the class of several of them."""

    blanks: tuple[Blank, ...]
    kind: type | None


@dataclass(frozen=True, slots=True)
class _Repeated:
    """What an operation gives, and the tensors in it."""

    value: Any
    results: Sequence[torch.Tensor]


@dataclass(slots=True)
class _Known:
    """Where a tensor of a loop comes from."""

    tensor: Callable[[], torch.Tensor | None]
    loop: _Loop
    step: int
    place: tuple[int, int]


class _Loop:
    """The steps of one loop: an iterable that stands for a ``range``."""

    def __init__(self, loops: RolledLoops, first: Any, each: int, count: Any, line: str) -> None:
        self.loops, self.first, self.each, self.count, self.line = loops, first, each, count, line
        self.index = _Index(self, first, each)
        self.steps: list[list[_Operation]] = []
        self.finals: dict[tuple[int, int], torch.Tensor] = {}
        self.stacked: dict[tuple[int, int], torch.Tensor] = {}
        #: the shapes that operations of the second step gave, by their number
        self.blanks: dict[int, _Blanks] = {}
        #: the memory of tensors that other steps, or others, can read; kept, so that no other has
        #: its address
        self.shared: dict[int, torch.UntypedStorage] = {}

    def refused(self, reason: str) -> NotRolledError:
        """The error that the loop is no scan."""
        return self.loops.failed(NotRolledError(self.line, reason))

    def __len__(self) -> int:
        raise self.refused("the number of its steps is read as a number")

    def shares(self, tensor: torch.Tensor) -> None:
        """The memory of a tensor is not for steps to write to from here on."""
        self.shared[_memory(tensor)] = tensor.untyped_storage()

    def backwards(self) -> _Loop:
        """The same steps from the last one on."""
        last = self.first + self.each * (self.count - 1)
        return _Loop(self.loops, last, -self.each, self.count, self.line)

    def __reversed__(self) -> Iterator[Any]:
        return iter(self.backwards())

    def __iter__(self) -> Iterator[Any]:
        if not self.count >= 1:
            raise self.refused("it has no step")
        if not self.count <= self.loops.n_steps:
            raise self.refused(f"it has more than the {self.loops.n_steps} steps that are compared")
        numbers: dict[str, str] = {}
        ended = False
        kept: Snapshot | None = None
        self.loops.begin(self)
        try:
            for step in range(self.loops.n_steps):
                self.steps.append([])
                yield self.index
                frames = _frames_of_model(sys._getframe(1))
                found = _numbers(frames)
                if step and any(found.get(name, text) != text for name, text in numbers.items()):
                    raise self.refused("a number changes from step to step")
                numbers = found
                if step == 0:
                    kept = self.loops.held_by(frames)
            if kept is not None:
                self._check_kept(kept, _frames_of_model(sys._getframe(1)))
            ended = True
        finally:
            self.loops.end(self, ended)
        self.loops.roll(self)

    def _check_kept(self, kept: Snapshot, frames: Sequence[FrameType]) -> None:
        """Passes where Python keeps nothing from the steps but results: lists with one of each step,
        which nobody counts, and tensors in the place of others.

        :raises NotRolledError: where it keeps something else, as a count
        """
        added = self.loops.n_steps - 1
        grown: list[Any] = []
        for change in kept.changes():
            if isinstance(change.before, torch.Tensor) and isinstance(change.now, torch.Tensor):
                continue
            new = change.now[len(change.before) :] if type(change.now) is list else []
            if len(new) != added or not all(isinstance(one, torch.Tensor) for one in new):
                raise self.refused(f"{change.path or 'a container'} changes from step to step")
            grown.append(change.now)
        if self.loops.follows:
            return  # the trace has looked at the source
        names = {
            name
            for frame in frames
            for name, value in frame.f_locals.items()
            if any(value is one for one in grown)
        }
        if sum(any(value is one for one in grown) for value in frames[0].f_locals.values()) < len(
            grown
        ):
            raise self.refused("a list that is no local name has a result of each step")
        code = frames[0].f_code
        tree = tree_of(code.co_filename)
        counted = (
            "its source is not there"
            if tree is None
            else counted_by(tree, names, frames[0].f_lineno)
        )
        if counted:
            raise self.refused(f"the number of its steps may be counted: {counted}")


class _TakenApart(tuple[torch.Tensor, ...]):
    """What ``unbind`` gives: parts of a tensor, of which a loop reads one a step."""

    loops: RolledLoops
    whole: torch.Tensor
    dim: int
    count: Any

    def row(self, index: _Index) -> Any:
        """The part at an index of a loop."""
        if self.loops.rows is not None:
            self.loops.rows.read_by_steps(tuple(super().__iter__()))
        key: Any = (*[slice(None)] * self.dim, index)
        return self.whole[key]

    def __getitem__(self, key: Any) -> Any:
        return self.row(key) if isinstance(key, _Index) else super().__getitem__(key)

    def __iter__(self) -> Iterator[Any]:
        loop = self.loops.over(self)
        return super().__iter__() if loop is None else map(self.row, loop)

    def __reversed__(self) -> Iterator[Any]:
        loop = self.loops.over(self)
        if loop is None:
            return reversed(tuple(super().__iter__()))
        return map(self.row, loop.backwards())


def _frames_of_model(frame: FrameType | None) -> list[FrameType]:
    """The frame of the loop and those that called it, as far as they run code of the model."""
    found = []
    while frame is not None:
        if is_code_of_model(frame.f_code.co_filename):
            found.append(frame)
        elif found and is_own_code(frame.f_code.co_filename):
            break  # that is where the model was called
        frame = frame.f_back
    return found


def _numbers(frames: Iterable[FrameType]) -> dict[str, str]:
    """The numbers among the local names of frames, as text."""
    kinds = (bool, int, float, str, torch.SymInt, torch.SymFloat)
    return {
        f"{depth} {name}": str(value)
        for depth, frame in enumerate(frames)
        for name, value in frame.f_locals.items()
        if isinstance(value, kinds)
    }


class RolledLoops(Reader):
    """Inside the block loops over symbolic sizes are rolled; ``rolled`` has their lines,
    ``scans`` those of loops that compute something.

    ``unrolled`` are the lines of loops that are traced step by step. ``reach`` gives what the model
    holds. ``builtins`` stand for those of
    Python in the files of the model. ``rows`` are those that the model takes apart. ``n_steps`` are
    compared, and no graph is for more.

    With ``like`` the loops that a trace rolled are rolled in a run with plain sizes: those, and no
    others. ``unseen`` is a block in which the steps are run.
    """

    def __init__(
        self,
        unrolled: Iterable[str] = (),
        rows: WholeRows | None = None,
        n_steps: int = FEWEST_STEPS,
        *,
        like: Rolling | None = None,
        unseen: Callable[[], contextlib.AbstractContextManager[Any]] | None = None,
        reach: Callable[[], Snapshot] | None = None,
    ) -> None:
        self._reach = Snapshot if reach is None else reach
        self.n_steps = n_steps if like is None else like.n_steps
        self._like = like
        self._block = unseen or disable_proxy_modes_tracing
        self.rows = rows
        self.rolled: list[str] = []
        self.scans: list[str] = []
        self.failure: NotRolledError | None = None
        self.builtins = {
            "len": self._length,
            "range": type(
                "range",
                (RangeOfSizes,),
                {"loop": staticmethod(self._loop_of), "of_ints": like is not None},
            ),
            "enumerate": self._enumerate,
            "zip": self._zip,
        }
        self._unrolled = frozenset(unrolled)
        self._loop: _Loop | None = None
        self._busy = False
        self._unseen = contextlib.ExitStack()
        self._known: dict[int, _Known] = {}

    def _loop_of(self, start: Any, step: int, count: Any) -> _Loop | None:
        """The steps of a ``range`` of symbolic sizes; None for one that is traced step by step."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and not is_code_of_model(frame.f_code.co_filename):
            frame = frame.f_back
        line = line_of(frame) if frame is not None else ""
        is_kept = line in self._unrolled if self._like is None else line not in self._like.lines
        return None if is_kept else _Loop(self, start, step, count, line)

    def over(self, parts: _TakenApart) -> _Loop | None:
        """The steps over the parts of a tensor, as for a ``range``."""
        if self._loop is not None or not self._may_roll(parts.count):
            return None
        return self._loop_of(0, 1, parts.count)

    @property
    def follows(self) -> bool:
        """True where the loops of another trace are rolled."""
        return self._like is not None

    def held_by(self, frames: Sequence[FrameType]) -> Snapshot:
        """What the model, and the local names of some frames, hold now."""
        was_busy, self._busy = self._busy, True  # what a walk asks of tensors is no step
        try:
            held = self._reach()
            values = [value for frame in frames for value in list(frame.f_locals.values())]
            plain = [value for value in values if _may_count(value)]
            held.holders += Snapshot.of(plain, copies=False).again().holders[1:]
        finally:
            self._busy = was_busy
        return held

    @property
    def rolls(self) -> bool:
        """False where no loop of the run is to be rolled."""
        return self._like is None or bool(self._like.lines)

    def _may_roll(self, count: Any) -> bool:
        """True for a number of steps with which a loop may be rolled."""
        return _is_symbolic(count) or (self._like is not None and bool(count))

    def _length(self, value: Any) -> Any:
        """``len``: of a list with a result of each step, as many as there are steps."""
        if isinstance(value, _Loop):
            return value.count
        if isinstance(value, (list, tuple)) and (run := self._run(value)) is not None:
            return run.loop.count + (len(value) - self.n_steps)
        return length_of(value) if self.rows is None else self.rows.length(value, length_of)

    def _enumerate(self, values: Any, start: int = 0) -> Iterator[Any]:
        parts = self._parts_of(values)
        loop = self.over(parts) if parts is not None else None
        if parts is None or loop is None:
            return enumerate(values, start)
        return ((index + start, parts.row(index)) for index in loop)

    def _zip(self, *values: Any, **options: Any) -> Iterator[Any]:
        parts = [self._parts_of(value) for value in values]
        found = [one for one in parts if one is not None]
        if not values or len(found) < len(values):
            return zip(*values, **options)  # noqa: B905 options has it
        alike = all(statically_known_true(one.count == found[0].count) for one in found)
        loop = self.over(found[0]) if alike else None
        if loop is None:
            return zip(*values, **options)  # noqa: B905 options has it
        return (tuple(one.row(index) for one in found) for index in loop)

    def _parts_of(self, values: Any) -> _TakenApart | None:
        if isinstance(values, torch.Tensor) and values.ndim and self._loop is None:
            values = values.unbind(0)
        return values if isinstance(values, _TakenApart) else None

    def begin(self, loop: _Loop) -> None:
        """From here on functions are those of the steps of a loop, which the trace does not see."""
        if self._loop is not None:
            raise self._loop.refused("there is another loop over sizes in it")
        self._loop = loop
        self._unseen.enter_context(self._block())

    def end(self, loop: _Loop, ended: bool) -> None:
        """A loop is over: ``ended`` with its last step."""
        if self._loop is loop:
            self._loop = None
            self._unseen.close()
            if not ended:
                loop.refused("it ends before its last step")

    def __exit__(self, *error: Any) -> None:
        if self._loop is not None:  # whoever has its steps may never ask for the next one
            self.end(self._loop, False)

    def failed(self, error: NotRolledError) -> NotRolledError:
        """Remembers an error, which the model may catch, and gives it."""
        self.failure = self.failure or error
        return error

    def wants(self, func: Callable[..., Any]) -> bool:
        """True for what takes a tensor apart, and for all functions within a loop and after it."""
        return self._loop is not None or bool(self._known) or func in _SPLITS

    def on_call(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Records the functions of a step, and gives the results of a loop to others."""
        if func in _SPLITS and not self._busy and self._loop is None:
            return self._apart(func, *args, **kwargs)
        if self._busy or is_about(func):
            return func(*args, **kwargs)
        self._busy = True
        try:
            if self._loop is not None:
                return self._in_step(self._loop, func, args, kwargs)
            joined = self._joined(func, *args, **kwargs) if func in _JOINS else None
            if joined is not None:
                return joined
            args, kwargs = _mapped((args, kwargs), self.value)
            return func(*args, **kwargs)
        finally:
            self._busy = False

    def _apart(self, func: Callable[..., Any], tensor: Any, dim: int = 0) -> Any:
        tensor = self.value(tensor)
        dim = dim % tensor.ndim if tensor.ndim else 0
        count = tensor.shape[dim] if tensor.ndim else 0
        parts = func(tensor, dim)  # the last that is asked, since list() asks for the length next
        if not self._may_roll(count):
            return parts
        apart = _TakenApart(parts)
        apart.loops, apart.whole, apart.dim, apart.count = self, tensor, dim, count
        return apart

    # -- a step

    def _in_step(
        self, loop: _Loop, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        name = _name(func)
        if func in _READS_VALUES or any(context in name for context in _CONTEXTS):
            raise loop.refused(f"a step has {name}")
        if func is torch.Tensor.__setitem__ and _leaves(args[1], _Index):
            return self._write(loop, *args)
        if _leaves((args, kwargs), _Index):
            return self._read(loop, func, args, kwargs)
        if _writes(func, kwargs):
            self._check_write(loop, func, args, kwargs)
        return self._compute(loop, func, args, kwargs)

    def _compute(
        self, loop: _Loop, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        arguments = _mapped((args, kwargs), lambda leaf: self._reference(loop, leaf))
        operation = _Operation(func, arguments)
        repeated = self._repeated(loop, operation)
        if repeated is not None:
            self._note(loop, operation, repeated.results)
            return repeated.value
        args, kwargs = _mapped((args, kwargs), self.value)
        result = func(*args, **kwargs)
        results = _leaves(result, torch.Tensor)
        if results or result is None:
            given = {id(leaf) for leaf in _leaves((args, kwargs), torch.Tensor)}
            self._note(loop, operation, results, given)
            if not operation.writes and given.isdisjoint(map(id, results)):
                self._remember(loop, result)
        return result

    def _repeated(self, loop: _Loop, operation: _Operation) -> _Repeated | None:
        """What an operation gives in a step after the second one, where it gave new tensors there:
        tensors of the same shapes; None where it has to be computed.

        Only what steps do is looked at, and a step that differs is found in the end.
        """
        number = len(loop.steps[-1])
        blanks = loop.blanks.get(number) if len(loop.steps) > 2 else None
        if blanks is None or loop.steps[1][number] != operation:
            return None
        results = [blank.fresh() for blank in blanks.blanks]
        return _Repeated(results[0] if blanks.kind is None else blanks.kind(results), results)

    def _remember(self, loop: _Loop, result: Any) -> None:
        """Keeps the shapes of the last operation of the second step, of which the later ones are
        copies.
        """
        several = type(result) in (tuple, list)
        tensors = result if several else (result,)
        if len(loop.steps) != 2 or not all(isinstance(one, torch.Tensor) for one in tensors):
            return
        blanks = [blank for blank in map(Blank.of, tensors) if blank is not None]
        if len(blanks) == len(tensors):
            kind = type(result) if several else None
            loop.blanks[len(loop.steps[1]) - 1] = _Blanks(tuple(blanks), kind)

    def _note(
        self, loop: _Loop, operation: _Operation, results: Sequence[Any], given: Iterable[int] = ()
    ) -> None:
        """Keeps an operation of a step; a result that is an argument stays what it was."""
        step = loop.steps[-1]
        for number, leaf in enumerate(results):
            if id(leaf) not in given:
                place = (len(step), number)
                self._known[id(leaf)] = _Known(weakref.ref(leaf), loop, len(loop.steps) - 1, place)
        step.append(operation)

    def _reference(self, loop: _Loop, leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            found = self._found(leaf)
            if found is None or found.loop is not loop:
                outer = self.value(leaf)
                loop.shares(outer)
                return _Outer(id(outer), outer)
            before = len(loop.steps) - 1 - found.step
            if before > 1:
                raise loop.refused("a step reads what was computed two steps before")
            if before:
                loop.shares(leaf)
            return _Result(*found.place, bool(before))
        if isinstance(leaf, (torch.SymInt, torch.SymFloat)):
            return _Size(str(leaf.node.expr), leaf)
        return _Constant(type(leaf), leaf)

    def _found(self, tensor: Any) -> _Known | None:
        found = self._known.get(id(tensor))
        return found if found is not None and found.tensor() is tensor else None

    def _check_write(
        self, loop: _Loop, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Passes where a step writes to its own tensors alone.

        :raises NotRolledError: where it writes to what other steps, or others, can read
        """
        for target in (*args[:1], *_leaves(kwargs.get("out"), torch.Tensor)):
            found = self._found(target)
            own = found is not None and found.loop is loop and found.step == len(loop.steps) - 1
            if not own or _memory(target) in loop.shared:
                raise loop.refused(f"{_name(func)} writes to a tensor that is not of its step")

    def _read(
        self, loop: _Loop, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Rows of a tensor that stays, at the index of the step.

        Methods such as ``select`` want an int before they come here, so only brackets do.
        """
        if func is not torch.Tensor.__getitem__:
            raise loop.refused(f"{_name(func)} computes with the index")
        key = args[1] if isinstance(args[1], tuple) else (args[1],)
        entries, is_cut = _of_one_row(loop, key)
        rows = self._rows(loop, args[0], entries)
        operation = _Operation(None, rows=rows)
        repeated = self._repeated(loop, operation)
        row = rows.of_first_index() if repeated is None else repeated.value
        self._note(loop, operation, [row])
        self._remember(loop, row)
        if is_cut:
            return self._compute(loop, torch.unsqueeze, (row, rows.place), {})
        return row

    def _rows(self, loop: _Loop, tensor: torch.Tensor, entries: tuple[Any, ...]) -> _Rows:
        outer = self._reference(loop, tensor)
        if not isinstance(outer, _Outer):
            raise loop.refused("a step reads or writes its own results at its index")
        kinds = (int, torch.SymInt, slice, type(None), type(...), _Index)
        indices = [n for n, entry in enumerate(entries) if isinstance(entry, _Index)]
        if len(indices) != 1 or any(type(entry) not in kinds for entry in entries):
            raise loop.refused(
                "the loop index is used together with another index or a tensor, as in x[t, other]"
            )
        index = entries[indices[0]]
        if index.loop is not loop:
            raise loop.refused("it reads the index of another loop")
        n_given = sum(entry is not None and entry is not ... for entry in entries)
        dim = place = 0
        for entry in entries[: indices[0]]:
            width = outer.tensor.ndim - n_given if entry is ... else 1
            dim += 0 if entry is None else width
            place += 0 if isinstance(entry, (int, torch.SymInt)) else width
        key = tuple(map(_text_of_entry, entries))
        return _Rows(outer.number, key, outer.tensor, entries, index, dim, place)

    def _write(self, loop: _Loop, tensor: torch.Tensor, key: Any, value: Any) -> None:
        """Rows of a tensor that stays are written, each by one step."""
        rows = self._rows(loop, tensor, key if isinstance(key, tuple) else (key,))
        row, source = rows.of_first_index(), self._reference(loop, value)
        same_shape = isinstance(value, torch.Tensor) and (
            row.ndim == value.ndim
            and all(
                statically_known_true(one == other)
                for one, other in zip(row.shape, value.shape, strict=True)
            )
        )
        if not isinstance(source, _Result) or source.before or not same_shape:
            raise loop.refused("a step writes something else than a row of its own")
        loop.shares(value)
        loop.steps[-1].append(_Operation(None, rows=rows, written=source))

    # -- all steps

    def roll(self, loop: _Loop) -> None:
        """Makes the scan, and remembers which of its results stand for those of the steps.

        :raises NotRolledError: where the steps differ
        """
        self._busy = True
        try:
            self._roll(loop)
        except NotRolledError:
            raise
        except Exception as error:
            raise loop.refused(f"{type(error).__name__}: {error}") from error
        finally:
            self._busy = False

    def _roll(self, loop: _Loop) -> None:
        first, body, *others = loop.steps
        if not any(loop.steps):
            return
        if any(step != body for step in others):
            raise loop.refused("its steps differ")
        carries = _carries(loop, first, body)
        written = [operation for operation in body if operation.written is not None]
        read = {
            one.number
            for operation in body
            for one in _leaves((operation.arguments, operation.rows), (_Outer, _Rows))
            if operation.written is None
        }
        targets = [operation.rows.number for operation in written if operation.rows is not None]
        if not read.isdisjoint(targets):
            raise loop.refused("a step reads a tensor that steps write to")
        stacked = [operation.written.place for operation in written if operation.written]
        lasts: dict[tuple[int, int], torch.Tensor] = {}
        # in the order of a step, so that two traces of a loop give the same scan
        for place, tensors in sorted(self._alive(loop).items()):
            if None not in tensors or body[place[0]].rows is not None:
                stacked.append(place)
            elif tensors[-1] is not None and place not in carries:
                lasts[place] = tensors[-1]
        _scan(loop, body, carries, lasts, list(dict.fromkeys(stacked)))
        for operation in written:
            if operation.rows is not None and operation.written is not None:
                rows, index = operation.rows, operation.rows.index
                values = loop.stacked[operation.written.place]
                values = values.flip(0) if index.each < 0 else values
                rows.whole().copy_(values.movedim(0, rows.place))
        self.rolled.append(loop.line)

    def _alive(self, loop: _Loop) -> dict[tuple[int, int], list[torch.Tensor | None]]:
        """The results that somebody still has: of each step, None where nobody has it."""
        found: dict[tuple[int, int], list[torch.Tensor | None]] = {}
        for known in list(self._known.values()):
            tensor = known.tensor() if known.loop is loop else None
            if tensor is not None:
                found.setdefault(known.place, [None] * self.n_steps)[known.step] = tensor
        return found

    # -- after the loop

    def value(self, leaf: Any) -> Any:
        """What stands for a tensor of the last step of a loop; other values as they are.

        :raises NotRolledError: for a tensor of one of the steps before
        """
        if isinstance(leaf, _Index):
            raise leaf.loop.refused("its index is read after it")
        found = self._found(leaf) if isinstance(leaf, torch.Tensor) else None
        if found is None or found.loop is self._loop:
            return leaf
        finals, stacked = found.loop.finals, found.loop.stacked
        if found.step != self.n_steps - 1 or found.place not in {**finals, **stacked}:
            raise found.loop.refused("the result of one of its steps is read after it")
        if found.place not in finals:
            finals[found.place] = stacked[found.place].select(0, -1)
        return finals[found.place]

    def _run(self, values: Sequence[Any]) -> _Run | None:
        """Where the results of all steps of a loop are in a row among some values."""
        for begin in range(len(values) - self.n_steps + 1):
            found = [self._found(value) for value in values[begin : begin + self.n_steps]]
            one = found[0]
            if one is None or any(f is None or f.loop is not one.loop for f in found):
                continue
            steps = [f.step for f in found if f is not None and f.place == one.place]
            order = list(range(self.n_steps))
            if steps in (order, order[::-1]):
                return _Run(one.loop, one.place, begin, steps != order)
        return None

    def _joined(
        self, func: Callable[..., Any], tensors: Any, dim: int = 0, **others: Any
    ) -> torch.Tensor | None:
        """What tensors give together, with the results of all steps as one of them; None where
        those are not among them.
        """
        run = self._run(tensors) if isinstance(tensors, (list, tuple)) and not others else None
        if run is None or run.place not in run.loop.stacked:
            return None
        stacked = run.loop.stacked[run.place]
        stacked = stacked.flip(0) if run.backwards else stacked
        is_stack = func is torch.stack
        dim = dim % (stacked.ndim if is_stack else stacked.ndim - 1)
        whole = stacked.movedim(0, dim)
        before, after = tensors[: run.begin], tensors[run.begin + self.n_steps :]
        if not is_stack:
            whole = whole.flatten(dim, dim + 1)
        if not before and not after:
            return whole
        parts = [
            [value.unsqueeze(dim) if is_stack else value for value in map(self.value, side)]
            for side in (before, after)
        ]
        return torch.cat([*parts[0], whole, *parts[1]], dim)


@dataclass(frozen=True, slots=True)
class _Run:
    """The results of all steps of a loop in a row, from ``begin`` on."""

    loop: _Loop
    place: tuple[int, int]
    begin: int
    backwards: bool


def _carries(
    loop: _Loop, first: Sequence[_Operation], body: Sequence[_Operation]
) -> dict[tuple[int, int], torch.Tensor]:
    """What a step has from the one before: which result it is, and what the first step has instead.

    :raises NotRolledError: where the first step differs otherwise
    """
    carries: dict[tuple[int, int], torch.Tensor] = {}

    def begun(one: Any, other: Any) -> bool:
        if isinstance(other, _Result) and other.before:
            if not isinstance(one, _Outer):
                return False
            return carries.setdefault(other.place, one.tensor) is one.tensor
        return bool(one == other)

    for one, other in zip(first, body, strict=False):
        leaves = _leaves(one.arguments, object), _leaves(other.arguments, object)
        same = _mapped(one.arguments, _nothing) == _mapped(other.arguments, _nothing)
        rest = one.function, one.rows, one.written
        if not same or rest != (other.function, other.rows, other.written):
            raise loop.refused("its first step differs from the others")
        if not all(map(begun, *leaves)):
            raise loop.refused("its first step begins with something else than a tensor")
    if len(first) != len(body):
        raise loop.refused("its first step differs from the others")
    return carries


def _scan(
    loop: _Loop,
    body: Sequence[_Operation],
    carries: Mapping[tuple[int, int], torch.Tensor],
    lasts: Mapping[tuple[int, int], torch.Tensor],
    wanted: Sequence[tuple[int, int]],
) -> None:
    """One ``scan`` for all steps: it gives what a step has from the one before, ``lasts`` of the
    last step, and what is ``wanted`` of all.
    """
    needed = {place[0] for place in (*carries, *lasts, *wanted)}
    for number in reversed(range(len(body))):
        if number in needed or body[number].writes:
            needed.add(number)
            needed |= {
                one.operation for one in _leaves(body[number].arguments, _Result) if not one.before
            }
    steps = {number: body[number] for number in sorted(needed)}
    rows = {number: one.rows.of_steps() for number, one in steps.items() if one.rows is not None}
    stays: dict[Any, Any] = {}
    for operation in steps.values():
        for one in _leaves(operation.arguments, (_Outer, _Size)):
            stays.setdefault(one, one.tensor if isinstance(one, _Outer) else one.value)
    stacked = [place for place in wanted if place[0] not in rows]
    # a result of the last step alone is a state that no step reads
    unread = (torch.zeros(t.shape, dtype=t.dtype, device=t.device) for t in lasts.values())
    begun = [*map(_copied, carries.values()), *unread]
    read = list(rows.values())

    def step(*values: torch.Tensor) -> list[torch.Tensor]:
        n_begun, n_read = len(begun), len(read)
        before = dict(zip(carries, values[:n_begun], strict=False))
        known = dict(zip(((n, 0) for n in rows), values[n_begun : n_begun + n_read], strict=False))
        constant = dict(zip(stays, values[n_begun + n_read :], strict=True))

        def value(one: Any) -> Any:
            if isinstance(one, _Result):
                return before[one.place] if one.before else known[one.place]
            return constant[one] if isinstance(one, (_Outer, _Size)) else one.value

        for number, operation in steps.items():
            if operation.function is not None:
                args, kwargs = _mapped(operation.arguments, value)
                results = _leaves(operation.function(*args, **kwargs), torch.Tensor)
                known |= {(number, leaf): result for leaf, result in enumerate(results)}
        nexts = [known[place] for place in (*carries, *lasts)] or [values[0]]
        # results of a scan share no memory with its inputs or with each other
        given = (*nexts, *(known[place] for place in stacked))
        return list(map(_copied, given))

    if begun or stacked:
        begun = begun or [torch.zeros(1)]  # scan asks for a state
        read = read or [torch.zeros(loop.count)]  # and for rows
        results = list(scan_op(step, begun, read, tuple(stays.values())))
        loop.loops.scans.append(loop.line)
        loop.finals.update(zip((*carries, *lasts), results, strict=False))
        loop.stacked.update(zip(stacked, results[len(begun) :], strict=True))
    loop.stacked.update((place, rows[place[0]]) for place in wanted if place[0] in rows)


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """A copy without gaps: the strides of a state must not change from step to step."""
    return tensor.clone(memory_format=torch.contiguous_format)


def _of_one_row(loop: _Loop, entries: tuple[Any, ...]) -> tuple[tuple[Any, ...], bool]:
    """The key with ``t`` for ``t : t + 1``, and True where it had that."""
    found, is_cut = list(entries), False
    for number, entry in enumerate(entries):
        if isinstance(entry, slice) and _leaves(entry, _Index):
            begin, end = entry.start, entry.stop
            if not isinstance(begin, _Index) or not isinstance(end, _Index) or entry.step:
                raise loop.refused("a step reads a slice that grows with its index")
            if begin.each != end.each or not statically_known_true(end.first - begin.first == 1):
                raise loop.refused("a step reads several rows at its index")
            found[number], is_cut = begin, True
    return tuple(found), is_cut


def _text_of_entry(entry: Any) -> str:
    if isinstance(entry, _Index):
        return f"{entry.first} + {entry.each} * step"
    return str(entry)


def _may_count(value: Any) -> bool:
    """True for a local value in which Python may keep a count: a container, or what is stepped
    through; the model has been looked at already.
    """
    if isinstance(value, GeneratorType) and is_own_code(value.gi_code.co_filename):
        return False  # it gives the steps
    kinds = (list, dict, set, collections.deque, bytearray, Iterator)
    return isinstance(value, kinds) and not isinstance(value, (_Loop, torch.Tensor))


def _is_symbolic(size: Any) -> bool:
    return isinstance(size, torch.SymInt) and not size.node.expr.is_number


def _nothing(_: Any) -> None:
    return None


def _name(func: Callable[..., Any]) -> str:
    return str(getattr(func, "__name__", func))


def _memory(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _writes(func: Callable[..., Any], kwargs: Mapping[str, Any]) -> bool:
    """True for a function that writes to its first argument, or to ``out``."""
    name = _name(func)
    if name.startswith("__"):
        return name in _WRITING
    inplace = kwargs.get("inplace", False)
    return name.endswith("_") or "out" in kwargs or inplace not in (False, _Constant(bool, False))


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Containers and slices with other leaves."""
    if isinstance(value, dict):
        return {name: _mapped(item, change) for name, item in value.items()}
    if isinstance(value, (tuple, list)):
        kind = list if isinstance(value, list) else tuple
        # of what was taken apart the parts themselves, not the steps of a loop over it
        items = tuple.__iter__(value) if isinstance(value, tuple) else value
        return kind(_mapped(item, change) for item in items)
    if isinstance(value, slice):
        return slice(*(_mapped(item, change) for item in (value.start, value.stop, value.step)))
    return change(value)


def _leaves(value: Any, kinds: Any) -> list[Any]:
    """The leaves of containers and slices that are of some kinds."""
    found: list[Any] = []

    def keep(leaf: Any) -> None:
        if isinstance(leaf, kinds):
            found.append(leaf)

    _mapped(value, keep)
    return found


def _traced_step_by_step(attempt: Attempt) -> Retry | None:
    loops = attempt.reader(RolledLoops)
    failure = None if loops is None else loops.failure
    if failure is None:
        return None
    return Retry(attempt.request.unrolling([failure.line]), str(failure))


ROLLED_LOOPS = Repair(
    "rolled loops",
    "A trace runs every step of a Python loop over an axis, so that its graph holds for one number of"
    " steps. Where each step is proven to compute the same, the loop is one ``scan`` of torch.",
    until="tests/repairs/test_rolled_loops.py::test_a_loop_over_steps_is_one_graph_for_all_lengths",
    link="https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_higher_order_ops/scan.py",
    always=True,
    failed=_traced_step_by_step,
)
