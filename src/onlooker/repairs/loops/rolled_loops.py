"""Python loops over an axis as one ``scan`` of torch: one graph for all numbers of steps.

A trace runs every step of ``for t in range(x.shape[1])``, so its graph holds for one number of
steps. While the block of :class:`RolledLoops` lasts, such a loop runs some steps on tensors without
values, out of sight of the trace. What a step computes is compared with every other step: the same
functions, on constants and tensors that stay, on rows of tensors at the index of the step, and on
results of the same step or of steps before. Then the loop is ``scan`` with this step as its body,
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
A sum that begins with the number 0, as ``sum(x.unbind(1))`` does, begins with zeros.

``rows = torch.cat([rows, row], 1)`` is no state of a scan, which keeps its shape: where no step reads ``rows``, the
scan gives each ``row``, and they are joined to what ``rows`` was before the loop.

A test of a tensor in a step, as ``if state.isnan().any():``, has the answer of the watched call, in the first step
and in the others, and each step of the program demands it. So the trace has to know values
(:mod:`onlooker.repairs.numbers.by_values`), which the results of a scan have as well then.

The index is no int (:mod:`.step_indices`): it is added to, reads rows, computes floats and is a tensor beside
tensors; whatever else is done with it raises, but for comparisons that are alike in all steps, or in those of the
watched call, which the sizes have to satisfy then. A number that steps count and read, as with ``pos += 1``, is such an
index too. Where the first step differs, as with ``if t == 0`` or with a state that is None before it, it is traced
by itself, and the scan has the others; so is the last step, as with ``if t == n - 1`` or ``x[t : t + 8]`` with fewer
rows at the end. A loop whose path hangs on its index otherwise is never rolled.

``while t < n: ...; t += 1`` is such a loop too (:mod:`.while_loops`).

What Python keeps from step to step, a count in an attribute, a set, an iterator, may change a step that
comes later, or what comes after the loop. So all that the model and its frames hold is compared: but for
results, and ints that grow by the same number in each step, it must be after the last step what it was
after the first one, and lists of results must be read as a whole, or by another loop
(:mod:`onlooker.repairs.loops.loop_lists`). Besides, the graph is proven for as many steps as were
compared, twice as many as any watched call has, and at least 131: a decision of the trace says so, and
more steps are refused.

The shapes of a step are those of the second one, wherever it does the same: they are not computed
again, and a ``scan`` whose state changes its shape is refused. In a trial of a graph
(:mod:`onlooker.graphs.one_plan.operator_trials`) the run of the model has the loops rolled that the trace had.

Upstream: https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_higher_order_ops/scan.py
"""

from __future__ import annotations

import contextlib
import functools
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import GEN_CREATED, getgeneratorstate
from types import FrameType
from typing import Any

import sympy
import torch

from ...model_source.frames import (
    at_lines,
    frame_of_model,
    is_code_of_model,
    is_run_by_model,
    reading_frame,
    set_local,
)
from ...model_source.lines import line_of
from ...model_source.source_loops import MADE_TENSORS, list_extended_by, readers_of_list
from ...observing.effects import Effect
from ...observing.reach import Snapshot
from ...patches.swap import swapped
from ...proofs.decisions import taken_by
from ...torch_internals.fake_tensors import FakeTensor, FakeTensorMode
from ...torch_internals.modes import WithoutFunctions
from ...torch_internals.operators import pad_sequence
from ...torch_internals.sizes import (
    ShapeEnv,
    expression_of,
    free_unbacked_symbols,
    statically_known_true,
)
from ...torch_internals.tensor_marks import version_of_tensor
from ...torch_internals.tracing import (
    disable_proxy_modes_tracing,
    enable_python_dispatcher,
    trace_environment,
)
from ...torch_internals.trees import tree_leaves, tree_map_only
from ..numbers.range_tensors import RangeTensors, with_tensors
from ..numbers.repeated_lists import SizedList, repeated_item, values_of
from ..numbers.size_ints import RangeOfSizes, is_sized, length_of, wants_int_first
from ..repair import OF_BOTH, OF_FIRST, OF_LAST, Attempt, Repair, Retry
from ..trace_mode import Reader
from .kept_between_steps import COUNTS, KeptBetweenSteps, frames_of_model, may_hold
from .lists_of_numbers import PartOfList, joined_numbers, numbers_of_steps
from .loop_lists import Reading
from .loop_parts import (
    Blocks,
    Listed,
    Numbers,
    Pieces,
    Repeated,
    ResultList,
    ResultsApart,
    SomeApart,
    TakenApart,
    Zipped,
    repeated_in,
)
from .loop_results import LoopResults
from .scans import roll
from .step_indices import GREATER, SMALLER, StepFloat, StepIndex
from .step_keys import is_of_ints
from .step_numbers import StepNumbers, demanded
from .step_recorder import StepRecorder
from .steps import Loop, NotRolledError, mapped
from .while_loops import WhileLoops
from .whole_rows import WholeRows, is_about

__all__ = ["FEWEST_STEPS", "MOST_STEPS", "ROLLED_LOOPS", "NotRolledError", "RolledLoops", "Rolling"]

#: the fewest steps of a loop that are compared, and the most; no numbers that a model decides by
FEWEST_STEPS, MOST_STEPS = 131, 1031
#: by so much the numbers of steps of two loops may differ
_MOST_BESIDE = 4
_SPLITS = (torch.unbind, torch.Tensor.unbind)
#: what ``reversed`` gives for a list
_REVERSED: Any = type(reversed([0]))
_SYMBOLS = re.compile(r"\bu\d+\b")
_CHUNKS = (torch.chunk, torch.Tensor.chunk)
_CUTS = (torch.split, torch.Tensor.split, *_CHUNKS)
_JOINS = (torch.stack, torch.cat, torch.concat, torch.concatenate)
_COUNTS_WRITES = frozenset({version_of_tensor})
_OF_NUMBERS = (torch.tensor, torch.as_tensor)
#: what takes a tensor apart, makes a list of its numbers, or reads such a list
_READS = (torch.Tensor.tolist, torch.Tensor.__getitem__)
_OF_LISTS = frozenset((*_SPLITS, *_CUTS, *_JOINS, *_OF_NUMBERS, *_READS))


@dataclass(frozen=True, slots=True)
class Rolling:
    """The lines of the loops that a trace rolled, and how many steps were compared; ``visited`` are
    those of the loops of which it visited all rows but the ``refused`` ones (:mod:`.hit_rows`),
    ``ends`` those of the loops whose first step is traced by itself, twice where the last one is too, three times
    where the last one alone is,
    ``numbered`` those of the loops whose steps read numbers, ``unrolled`` those that are as they were.
    ``sides`` are the answers to tests of tensors in the steps of each loop, in the order of the loops, ``valued`` the
    lines of those whose index is a size that is a value.
    """

    lines: tuple[str, ...] = ()
    n_steps: int = FEWEST_STEPS
    visited: tuple[str, ...] = ()
    refused: tuple[tuple[str, int], ...] = ()
    ends: tuple[str, ...] = ()
    numbered: tuple[str, ...] = ()
    unrolled: tuple[str, ...] = ()
    sides: tuple[tuple[str, Mapping[tuple[int, int], bool]], ...] = field(default=(), hash=False)
    valued: tuple[str, ...] = ()


class RolledLoops(Reader):
    """Inside the block loops over symbolic sizes are rolled; ``rolled`` has their lines,
    ``scans`` those of loops that compute something.

    A loop goes through three of its parts: :class:`StepRecorder` runs and notes the functions of each
    step, :func:`roll` makes a scan of equal steps, and :class:`LoopResults` answers what is read after it.

    ``unrolled`` are the lines of loops that are traced step by step, ``ends`` those of loops whose first or
    last step is, and ``valued`` those whose index is a value (as :class:`Rolling` has them). ``reach``
    gives what the model holds, ``is_told`` is True for random numbers whose readings the trace tells.
    ``builtins`` stand for those of Python in the files of the model. ``rows`` are those that the model takes
    apart. ``n_steps`` are compared, and no graph is for more.

    With ``like`` the loops that a trace rolled are rolled in a run with plain sizes: those, and no
    others. ``unseen`` is a block in which the steps are run. Without ``numbers`` a loop whose steps read
    numbers from tensors is traced step by step.
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
        is_told: Callable[[Effect], bool] = lambda _: True,
        ranges: RangeTensors | None = None,
        ends: Sequence[str] = (),
        valued: Sequence[str] = (),
        numbers: bool = True,
    ) -> None:
        self._of_numbers = numbers
        self._ends = ends if like is None else like.ends
        self._valued = valued if like is None else like.valued
        self._reach = Snapshot if reach is None else reach
        self._is_told = is_told
        self.n_steps = n_steps if like is None else like.n_steps
        self._like = like
        self._block = unseen or disable_proxy_modes_tracing
        self.rows = rows
        self.rolled: list[str] = []
        self.scans: list[str] = []
        self.builtins: dict[str, Any] = {
            "len": self._length,
            "range": type(
                "range",
                (RangeOfSizes,),
                {
                    "loop": staticmethod(self._loop_of),
                    "listed": RangeOfSizes.listed if ranges is None else ranges.listed,
                    "of_ints": like is not None,
                },
            ),
            "enumerate": self._enumerate,
            "zip": self._zip,
            "sum": self._sum,
            "map": self._map,
            "min": SMALLER,
            "max": GREATER,
        }
        self._unrolled = frozenset(unrolled)
        self._loop: Loop | None = None
        self._busy = False
        self._unseen, self._swaps = contextlib.ExitStack(), contextlib.ExitStack()
        self._lists_are_plain = False
        #: what ``zip`` gave, by identity
        self._zips: dict[int, tuple[Any, Zipped]] = {}
        #: the last loop that was rolled
        self._last: Loop | None = None
        #: the lines of loops whose steps read numbers
        self.numbered: list[str] = []
        #: the answers to tests of tensors in the steps of each loop
        self.sides: list[tuple[str, Mapping[tuple[int, int], bool]]] = []
        self._like_sides = [] if like is None else [*like.sides]
        #: of each loop how many steps it has, and how many were run
        self._counts: list[tuple[Any, int]] = []
        self._results = LoopResults()
        self._recorder = StepRecorder(self._results, of_numbers=like is not None)
        over = {"steps_over": staticmethod(self._steps_over)}
        self._result_list = type("ResultList", (ResultList,), over)
        self._whiles = WhileLoops(self)
        #: the lists of the values of tensors in a run, by identity
        self._of_tensors: dict[int, tuple[list[Any], torch.Tensor]] = {}
        #: the lists of results that comprehensions are to make, by their names and the loop
        self._to_be_made: dict[str, Loop] = {}

    def _loop_of(self, start: Any, step: int, count: Any) -> Loop | None:
        """The steps of a ``range`` of symbolic sizes; None for one that is traced step by step."""
        frame = frame_of_model()
        line = line_of(frame) if frame is not None else ""
        is_rolled = self.rolls_at(line) if self._like is None else line in self._like.lines
        return Loop(self, start, step, count, line) if is_rolled else None

    def rolls_at(self, line: str) -> bool:
        """False for a line whose loop is traced step by step; a run is not told of the lines of lists."""
        return line not in (self._unrolled if self._like is None else self._like.unrolled)

    def over(self, parts: Any) -> Loop | None:
        """The steps over the parts of a tensor, as for a ``range``."""
        if self._loop is not None or self._lists_are_plain or not self._may_roll(parts.count):
            return None
        loop = self._loop_of(0, 1, parts.count)
        among = parts.parts if isinstance(parts, Zipped) else [parts]
        if loop is not None:
            loop.is_of_numbers = any(isinstance(one, Listed) for one in among)
            loop.repeated = repeated_in(parts)
        return loop

    @property
    def follows(self) -> bool:
        """True where the loops of another trace are rolled."""
        return self._like is not None

    def held_by(self, frames: Sequence[FrameType]) -> Snapshot:
        """Returns a snapshot of what the model, and the local names of some frames, hold now."""
        was_busy, self._busy = self._busy, True  # what a walk asks of tensors is no step
        try:
            held = self._reach()
            values = [value for frame in frames for value in list(frame.f_locals.values())]
            plain = [value for value in values if may_hold(value) or _is_new(value, held)]
            held.holders += Snapshot.of(plain, copies=False).again().holders[1:]
        finally:
            self._busy = was_busy
        return held

    @property
    def is_rolling(self) -> bool:
        """True within the steps of a loop that is rolled."""
        return self._loop is not None

    @property
    def rolls(self) -> bool:
        """False where no loop of the run is to be rolled."""
        return self._like is None or bool(self._like.lines)

    def _may_roll(self, count: Any) -> bool:
        """True for a number of steps with which a loop may be rolled."""
        return _is_symbolic(count) or (self._like is not None and bool(count))

    def _length(self, value: Any) -> Any:
        """``len``: of a list with a result of each step, as many as there are steps; of the parts of a tensor the
        size, which is no constant.
        """
        if isinstance(value, (Loop, TakenApart)):
            return value.count
        if is_sized(value):
            return length_of(value)
        if isinstance(value, (list, tuple)) and (run := self._results.in_a_row(value)) is not None:
            return run.loop.count + (len(value) - run.loop.n_steps)
        self._check_uncounted(value)
        if _is_list(value):
            self._results.check_list(value)
        return length_of(value) if self.rows is None else self.rows.length(value, length_of)

    def _check_uncounted(self, value: Any) -> None:
        """Passes for a value that is no list with an item of each step that was run.

        :raises NotRolledError: for such a list
        """
        if self._last is not None and self._is_long(value):
            raise self._last.refused("a list with an item of each step is counted")

    def _steps_over(self, values: Any) -> Iterator[tuple[StepIndex, Any]] | None:
        """The index and the part of each step of a loop over values; None where Python itself runs the loop."""
        parts = self._parts_of(values)
        loop = None if parts is None else self.over(parts)
        if loop is None:
            self._check_uncounted(values)
            return None
        return ((index, parts.row(index)) for index in self.run(loop))

    def given(self, index: Any) -> Any:
        """What the model gets for the index of a step."""
        is_valued = isinstance(index, StepIndex) and index.loop.line in self._valued
        return self.number_of(index) if is_valued else index

    def _enumerate(self, values: Any, start: int = 0) -> Iterator[Any]:
        steps = self._steps_over(values)
        if steps is None:
            return enumerate(values, start)
        return ((self.given(index + start), part) for index, part in steps)

    def _sum(self, values: Any, start: Any = 0) -> Any:
        steps = None
        if isinstance(values, list) and _is_list(values):
            steps = self._steps_over(values)
        else:
            self._check_uncounted(values)
        return sum(self._terms(values if steps is None else (part for _, part in steps)), start)

    def _terms(self, values: Iterable[Any]) -> Iterator[Any]:
        """The terms of a sum, of which those of the steps of a loop are tensors.

        :raises NotRolledError: for a number of a step: there are as many as steps that are run
        """
        before = self._loop
        for value in values:
            loop = self._loop if self._loop is not before else None
            if loop is not None and not isinstance(value, (torch.Tensor, StepFloat)):
                raise loop.refused("numbers of its steps are added up")
            yield value

    def _map(self, function: Any, *values: Any) -> Iterator[Any]:
        steps = self._steps_over(values[0]) if len(values) == 1 and _is_list(values[0]) else None
        if steps is not None:
            return (function(part) for _, part in steps)
        for value in values:
            self._check_uncounted(value)
        return map(function, *values)

    def _zip(self, *values: Any, **options: Any) -> Iterator[Any]:
        parts = [self._parts_of(value) for value in values]
        are_known = bool(parts) and all(one is not None for one in parts)
        zipped = Zipped.of(parts) if are_known else None
        loop = None if zipped is None else self.over(zipped)
        if zipped is None or loop is None:
            for value in values:
                self._check_uncounted(value)
            return zip(*values, **options)  # noqa: B905 options has it
        steps = (zipped.row(index) for index in self.run(loop))
        self._zips[id(steps)] = steps, zipped
        return steps

    def _repeated(self, values: Any) -> Repeated | None:
        """The item that is repeated by a size; None for other values. A run has plain lists of them."""
        if self._loop is not None:
            return None
        if (known := repeated_item(values)) is not None:
            return Repeated(*known)
        is_plain = self._like is not None and type(values) is list and bool(values)
        are_one = is_plain and all(value is values[0] for value in values)
        return Repeated(values[0], len(values)) if are_one else None

    def _parts_of(self, values: Any) -> Any:
        """What a loop goes over, with the number of its parts and the part at an index; None for values of which
        Python itself runs the loop.
        """
        steps, zipped = self._zips.get(id(values), (None, None))
        if steps is not None and getgeneratorstate(steps) == GEN_CREATED:
            return zipped
        if isinstance(values, Loop) and self._loop is None:
            return Numbers(values)
        if (repeated := self._repeated(values)) is not None:
            return repeated
        _, numbers = self._of_tensors.get(id(values), (None, values_of(values)))
        if self._of_numbers and numbers is not None and self._loop is None:
            frame = frame_of_model()
            return Listed.of(self, numbers, "" if frame is None else line_of(frame))
        if isinstance(values, torch.Tensor) and values.ndim and self._loop is None:
            values = values.unbind(0)
        if isinstance(values, _REVERSED):
            _, (items, *_), *place = values.__reduce__()
            if place != [len(items) - 1]:  # some of its items were read
                self._check_uncounted(items)
                return None
            values = items[::-1]
        if _is_list(values):
            apart = ResultsApart.of(values, self._results) if self._loop is None else None
            if apart is not None:
                return apart
            self._check_uncounted(values)
        return values if isinstance(values, (TakenApart, Listed)) else None

    @contextlib.contextmanager
    def lists_are_plain(self) -> Iterator[None]:
        """Inside the block ``tolist()`` is that of torch."""
        with swapped(self, "_lists_are_plain", True):
            yield

    def _listed(self, tensor: torch.Tensor) -> Any:
        """What stands for ``tensor.tolist()`` in a loop over it, for what a step extends a list by, or for a list
        of which torch makes a tensor; None for any other use.
        """
        is_busy = self._busy or self._lists_are_plain
        if is_busy or tensor.ndim not in (1, 2) or not is_of_ints(tensor):
            return None
        if self._loop is not None:
            return self._listed_in_step(self._loop, tensor) if self._of_numbers else None
        if not self._may_roll(tensor.shape[0]) or not all(map(_is_plain, tensor.shape[1:])):
            return None
        frame = frame_of_model()
        readers = frozenset() if frame is None else readers_of_list(frame.f_code, frame.f_lasti)
        if frame is None or not readers or not (self._of_numbers or readers <= MADE_TENSORS):
            return None
        line = line_of(frame)
        return Listed.of(self, tensor, line) if self.rolls_at(line) else None

    def _values_of(self, tensor: torch.Tensor) -> list[Any] | None:
        """What ``tolist()`` gives in a run with the loops of a trace: a list that knows its tensor, where a loop may go
        over it.
        """
        is_plain = self._busy or self._lists_are_plain or self._loop is not None
        if self._like is None or not self._like.lines or is_plain:
            return None
        if tensor.ndim != 1 or not is_of_ints(tensor):
            return None
        values: list[Any] = self._result_list(tensor.tolist())
        self._of_tensors[id(values)] = values, tensor.clone()
        return values

    def _listed_in_step(self, loop: Loop, tensor: torch.Tensor) -> Any:
        """What stands for ``tensor.tolist()`` where a step extends a list by it; None for any other use."""
        frame = frame_of_model()
        if frame is None or tensor.ndim != 1 or loop.numbers is None:
            return None
        name = list_extended_by(frame.f_code, frame.f_lasti)
        if type(frame.f_locals.get(name)) is not list:
            return None
        with swapped(self, "_busy", True):
            return self._recorder.listed(loop, tensor)

    def __enter__(self) -> Any:
        plain = FakeTensor.tolist  # no function of torch that a mode is told of

        def tolist(tensor: FakeTensor) -> Any:
            listed = self._listed(tensor)
            if listed is not None:
                return listed
            with self.lists_are_plain():
                return plain(tensor)

        self._swaps.enter_context(swapped(FakeTensor, "tolist", tolist))
        over = staticmethod(self._steps_over)
        self._swaps.enter_context(swapped(SizedList, "steps_over", over))
        at_tests = taken_by(lambda _, frame: self._goes_on(frame))
        if self._like is not None:
            at_tests = self._whiles.beginning_at(self._like.lines)
        self._swaps.enter_context(at_tests)
        self._swaps.callback(self._whiles.end)
        return self

    def goes_on(self) -> bool | None:
        """The answer to the test of a ``while`` loop that is rolled; None for any other question of the model."""
        return self._goes_on(frame_of_model())

    def _goes_on(self, frame: FrameType | None) -> bool | None:
        if frame is None or not is_code_of_model(frame.f_code.co_filename):
            return None
        return self._whiles.goes_on(frame)

    def run(self, loop: Loop) -> Iterator[Any]:
        """Yields the index of each step that is run, then makes a scan of them. Steps at its ends may
        be traced by themselves: they have numbers as indices.

        :raises NotRolledError: where the steps are no scan
        """
        if not is_run_by_model(sys._getframe(1)):
            raise loop.refused("its code was made at run time, and has no file")
        times = self._ends.count(loop.line)
        has_first, has_last = times in (OF_FIRST, OF_BOTH), times in (OF_BOTH, OF_LAST)
        n_ends = has_first + has_last
        if not self._decided(loop.count >= 1 + n_ends):
            if self._like is None or not n_ends:
                raise loop.refused("it has no step", here=True)
            # so few steps are those of another graph, which has each of them
            yield from (loop.first + loop.each * step for step in range(int(loop.count)))
            return
        if has_first:
            yield loop.first
        if n_ends:
            loop = loop.between(first=has_first, last=has_last)
        yield from self._run(loop)
        if has_last:
            yield loop.first + loop.each * loop.count

    def _run(self, loop: Loop) -> Iterator[StepIndex]:
        loop.n_steps = self._steps_of(loop)
        if not self._decided(loop.count <= loop.n_steps):
            raise loop.refused(f"it has more than the {loop.n_steps} steps that are compared")
        self._results.keep_ends()
        loop.numbers_of_steps = torch.arange(loop.count)
        kept = KeptBetweenSteps(loop, self.held_by, self._is_told, follows=self.follows)
        ended = False
        kept.look_ahead(frames_of_model(sys._getframe(1)))
        self.begin(loop)
        kept.begin(frames_of_model(sys._getframe(1)))
        try:
            for _ in range(loop.n_steps):
                loop.steps.append([])
                kept.begin_step(frames_of_model(sys._getframe(1)), self._recorder.number)
                yield loop.index
                self._recorder.after_step(loop)
                kept.after_step(frames_of_model(sys._getframe(1)))
            kept.after_last(frames_of_model(sys._getframe(1)))
            ended = True
        finally:
            self.end(loop, ended)
            kept.end_lists()
        self.roll(loop)
        kept.settle(frames_of_model(sys._getframe(1)))
        self._name_lists(loop, kept, frames_of_model(sys._getframe(1)))
        if kept.readings:
            self._look_at(loop, kept.readings, frames_of_model(sys._getframe(1))[0])

    def _look_at(self, loop: Loop, readings: Collection[Reading], frame: FrameType) -> None:
        """From here on notes a reading that counts the items of a list of results, before the line of it runs."""

        def is_over() -> bool:
            for one in readings:
                if one.first <= frame.f_lineno <= one.last:
                    value: Any = frame.f_locals.get(one.name)
                    values = value.values() if isinstance(value, dict) else [value]
                    if any(_is_list(one) and self._has_item_of_each_step(one) for one in values):
                        loop.refused(f"{COUNTS}: {one.name} is read in line {frame.f_lineno}")
                        return True
            return False

        self._swaps.callback(at_lines(frame, is_over))

    def _has_item_of_each_step(self, values: Any) -> bool:
        """True for a list with results of all steps, or with None for each."""
        if self._results.in_a_row(values) is not None:
            return True
        return self._is_long(values) and all(value is None for value in list(values))

    def _is_long(self, values: Any) -> bool:
        """True for a list that may have an item of each step that was run."""
        return _is_list(values) and len(values) >= self.n_steps - _MOST_BESIDE

    def _name_lists(self, loop: Loop, kept: KeptBetweenSteps, frames: Sequence[FrameType]) -> None:
        """Gives lists of results over which another loop goes an iterator of those of all steps: those that have a
        name now, and, before the next line of the function, the one that a comprehension makes.
        """
        for name in kept.named:
            if not self._name_list(frames[0], name):
                raise loop.refused(
                    f"another loop goes over {name}, which has more than results of all its steps"
                )
        if not kept.to_be_made:
            return
        # comprehensions are functions before Python 3.12
        is_inner = frames[0].f_code.co_name.startswith("<")
        function = frames[int(is_inner and len(frames) > 1)]
        self._to_be_made |= dict.fromkeys(kept.to_be_made, loop)

        def is_made() -> bool:
            for name in kept.to_be_made & self._to_be_made.keys():
                if self._name_list(function, name):
                    del self._to_be_made[name]
            return kept.to_be_made.isdisjoint(self._to_be_made)

        self._swaps.callback(at_lines(function, is_made))

    def _name_list(self, frame: FrameType, name: str) -> bool:
        """Gives the list of a name an iterator of all results; False where it is no list of them."""
        values = frame.f_locals.get(name)
        if type(values) is not list or ResultsApart.of(values, self._results) is None:
            return False
        set_local(frame, name, self._result_list(values))
        return True

    def _steps_of(self, loop: Loop) -> int:
        """How many steps of a loop are run: fewer, or more, by what its number of steps differs from that of a
        loop before, so that ``results[t + 1]`` is there in each step.
        """
        found = self.n_steps
        for count, n_steps in self._counts:
            beside = sympy.sympify(expression_of(loop.count - count))
            if beside.is_Integer and abs(n_steps + int(beside) - self.n_steps) <= _MOST_BESIDE:
                found = n_steps + int(beside)
                break
        self._counts.append((loop.count, found))
        return found

    def tensor_of(self, index: StepIndex) -> torch.Tensor:
        """The index of a step as a tensor."""
        return self._of_index(index, self._recorder.tensor_of)  # type: ignore[no-any-return]

    def number_of(self, index: StepIndex) -> Any:
        """The index of a step as a size that is a value."""
        return self._of_index(index, self._recorder.number_of)

    def _of_index(self, index: StepIndex, found: Callable[[Loop, StepIndex], Any]) -> Any:
        if self._loop is None:
            raise index.loop.refused("its index is read outside of its steps")
        with swapped(self, "_busy", True):
            return found(self._loop, index)

    def _decided(self, condition: Any) -> bool:
        """The answer for a size; a number of steps that is a value is checked when the program runs."""
        if isinstance(condition, torch.SymBool) and free_unbacked_symbols(condition):
            demanded(condition)
            return True
        return bool(condition)

    @functools.cached_property
    def _fakes(self) -> FakeTensorMode:
        return FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)

    def begin(self, loop: Loop) -> None:
        """From here on functions are those of the steps of a loop, which the trace does not see."""
        if self._loop is not None:
            raise self._loop.refused("there is another loop over sizes in it")
        self._loop = loop
        loop.is_running = True
        self._unseen.enter_context(self._block())
        if self.rows is not None:
            self._unseen.enter_context(self.rows.in_steps())
        environment, as_fake = trace_environment() if self._of_numbers else None, _same
        if self._like is not None:
            environment = None
            if loop.line in self._like.numbered:
                # a run with values, whose steps are run without them: so a number is a symbol there too
                mode, environment = self._fakes, self._fakes.shape_env
                as_fake = functools.partial(_without_values, mode)
                self._unseen.enter_context(enable_python_dispatcher())  # as in a trace
                self._unseen.enter_context(mode)
        loop.numbers = None if environment is None else StepNumbers(environment)
        known = next((one for one in self._like_sides if one[0] == loop.line), None)
        if known is not None:
            self._like_sides.remove(known)
        self._recorder = StepRecorder(
            self._results,
            of_numbers=self._like is not None,
            as_fake=as_fake,
            sides={} if known is None else known[1],
        )
        if environment is not None:
            self._unseen.enter_context(environment.ignore_fresh_unbacked_symbols())
            self._unseen.enter_context(self._recorder.answering(loop))

    def end(self, loop: Loop, ended: bool) -> None:
        """A loop is over: ``ended`` with its last step."""
        if self._loop is loop:
            self._loop = None
            loop.is_running = False
            self._unseen.close()
            if not ended and not loop.is_left_to_torch:
                loop.refused("it ends before its last step")

    def __exit__(self, *error: Any) -> None:
        self._swaps.close()
        for loop in self._to_be_made.values() if error[0] is None else ():
            raise loop.refused(
                "a loop goes over the list that a comprehension makes, which has no name"
            )
        if self._loop is not None:  # whoever has its steps may never ask for the next one
            self.end(self._loop, False)

    @property
    def _has_results(self) -> bool:
        """True within a loop and after it."""
        return self._loop is not None or bool(self._results)

    def wants(self, func: Callable[..., Any]) -> bool:
        """True for what takes a tensor apart, and for all functions within a loop and after it."""
        return self._has_results or func in _OF_LISTS

    def on_call(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Records the functions of a step, and gives the results of a loop to others."""
        if func in _OF_LISTS and (found := self._list_read(func, args, kwargs)) is not None:
            return found
        if self._busy or is_about(func):
            return func(*args, **kwargs)
        loop = self._last if self._loop is None else self._loop
        is_counted = func in _COUNTS_WRITES and reading_frame(2, func) is not None
        if is_counted and loop is not None and not self.follows:
            raise loop.refused("the writes to a tensor are counted")
        for one in (*args, *kwargs.values()):
            if isinstance(one, Listed):
                one.refused()
        if not self._has_results:
            return func(*args, **kwargs)
        self._busy = True
        try:
            if self._loop is not None:
                return self._recorder.call(self._loop, func, args, kwargs)
            joined = None
            if func is pad_sequence:
                joined = self._results.padded(*args, **kwargs)
            elif func in _JOINS:
                joined = self._results.joined(func, *args, **kwargs)
            elif func in _OF_NUMBERS and kwargs.keys() <= {"dtype", "device"}:
                joined = joined_numbers(self._results.joined, *args, **kwargs)
            if joined is not None:
                return joined
            args, kwargs = mapped((args, kwargs), self._results.value)
            return func(*args, **kwargs)
        finally:
            self._busy = False

    def _list_read(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """What a function gives that takes a tensor apart, makes a list of its numbers or reads such a list; None where
        it is what torch gives.
        """
        is_outside = self._loop is None
        if func in _SPLITS and not self._busy and is_outside:
            return self._apart(func, *args, **kwargs)
        if func in _CUTS:
            return self._cut(func, *args, **kwargs)
        if func is torch.Tensor.tolist:
            listed = self._listed(args[0])
            return self._values_of(args[0]) if listed is None else listed
        if func in _JOINS and args and isinstance(args[0], (Pieces, SomeApart)) and is_outside:
            return args[0].joined(func, *args[1:], **kwargs)
        if func in _OF_NUMBERS and isinstance(args[0], Listed) and is_outside:
            return args[0].as_tensor(*args[1:], **kwargs)
        if func in _OF_NUMBERS and is_outside and kwargs.keys() <= {"dtype", "device"}:
            return self._numbers(*args, **kwargs)
        if func is torch.Tensor.__getitem__ and is_outside:
            chosen = with_tensors(args[1], self._numbers)
            return None if chosen is None else args[0][chosen]
        return None

    def _numbers(self, values: Any, *args: Any, **options: Any) -> torch.Tensor | None:
        """What ``torch.tensor`` gives for a list with numbers that steps computed; None for another one."""
        if type(values) is not list or self._last is None:
            return None
        found = numbers_of_steps(self._results.joined, values, *args, **options)
        if found is not None:
            self.rolled.append(self._last.line)
        elif len(values) >= self._last.n_steps and not any(map(_is_of_loop, values)):
            raise self._last.refused("a list has a number of each step that is none of its index")
        return found

    def _apart(self, func: Callable[..., Any], tensor: Any, dim: int = 0) -> Any:
        tensor = self._results.value(tensor)
        with WithoutFunctions():  # the model reads none of these sizes
            place = dim % tensor.ndim if tensor.ndim else 0
            count = tensor.shape[place] if tensor.ndim else 0
        parts = func(tensor, dim)  # the last that is asked, since list() asks for the length next
        if not self._may_roll(count):
            return parts
        apart = TakenApart(parts)
        apart.loops, apart.whole, apart.dim, apart.count = self, tensor, place, count
        return apart

    def _cut(
        self,
        func: Callable[..., Any],
        tensor: torch.Tensor,
        split_size_or_sections: Any = None,
        dim: int = 0,
        **options: Any,
    ) -> Any:
        """The parts of ``split``: of the lengths in a list that is read in steps, or of one length each; and those
        of ``chunk``.
        """
        if func in _CHUNKS:
            return self._chunks(tensor, options.get("chunks", split_size_or_sections), dim)
        lengths = options.get("split_size", split_size_or_sections)
        length, count = repeated_item(lengths) or (None, 0)
        if isinstance(length, (int, torch.SymInt)) and self._loop is None:
            rows = self._results.value(tensor).unflatten(dim, (count, length))
            return self._apart(torch.Tensor.unbind, rows, dim % tensor.ndim)
        if not isinstance(lengths, Listed):
            return self._equal_parts(tensor, lengths, dim)
        frame = frame_of_model()
        line = line_of(frame) if frame is not None else ""
        is_plain = lengths.rows.ndim > 1 or self._loop is not None or not self.rolls_at(line)
        if is_plain:
            return torch.split(tensor, lengths.plain(), dim)
        return Pieces.parts(tensor, lengths, dim % tensor.ndim, line)

    def _chunks(self, tensor: Any, chunks: Any, dim: int) -> Any:
        """The parts of ``x.chunk(x.size(1), 1)``, which are of the length 1; None for another number."""
        if self._busy or not (_is_symbolic(chunks) or self._like is not None):
            return None
        with WithoutFunctions():  # the model reads none of these sizes
            shape = self._results.value(tensor).shape
        is_size = bool(shape) and statically_known_true(chunks == shape[dim])
        return self._equal_parts(tensor, 1, dim) if is_size else None

    def _equal_parts(self, tensor: Any, length: Any, dim: int) -> Any:
        """The parts of a tensor as the rows of another one, whose number is not fixed, and the last part where that
        is shorter; None for a number that is fixed.
        """
        if self._busy or self._loop is not None or type(length) is not int or length < 1:
            return None
        tensor = self._results.value(tensor)
        with WithoutFunctions():  # the model reads none of these sizes
            place = dim % tensor.ndim if tensor.ndim else 0
            size = tensor.shape[place] if tensor.ndim else 0
        if not self._may_roll(size) or size < length:
            return None
        if length == 1:
            return self._apart(torch.Tensor.unbind, tensor.unsqueeze(place + 1), place)
        if size % length == 0:
            rows = tensor.unflatten(place, (size // length, length))
            return self._apart(torch.Tensor.unbind, rows, place)
        equal = length * (size // length)
        rows = tensor.narrow(place, 0, equal).unflatten(place, (size // length, length))
        last = tensor.narrow(place, equal, size - equal)
        return Blocks.of(self._apart(torch.Tensor.unbind, rows, place), last)

    def roll(self, loop: Loop) -> None:
        """Makes the scan, and remembers which of its results stand for those of the steps.

        :raises NotRolledError: where the steps differ
        """
        self._busy = True
        try:
            self._last = loop
            if not any(loop.steps):
                return
            if loop.numbers is not None:
                loop.numbers.forget_conditions()
            if roll(loop, self._results, self._recorder.blanks):
                self.scans.append(loop.line)
            if loop.numbers is not None and loop.numbers:
                self.numbered.append(loop.line)
                self.sides.append((loop.line, self._recorder.sides))
                self._results.loops.append(loop)
            self._recorder.states.leave()
            self.rolled.append(loop.line)
        except NotRolledError:
            raise
        except Exception as error:
            raise loop.refused(f"{type(error).__name__}: {error}") from error
        finally:
            self._busy = False

    @staticmethod
    def plain(result: Any) -> Any:
        """Returns a result of the model, in which what ``unbind`` gave is a tuple.

        :raises NotRolledError: for a result with a float that a step computes from its index
        """
        leaves = tree_leaves(result, is_leaf=_is_apart)
        for leaf in leaves:
            if isinstance(leaf, StepFloat):
                raise leaf.loop.refused("a float of one of its steps is read after it")
        if not any(map(_is_apart, leaves)):
            return result
        return tree_map_only(TakenApart, _as_tuple, result, is_leaf=_is_apart)

    def left_number(self, error: Exception | None) -> NotRolledError | None:
        """The error that a loop is no scan, where an error of torch is about a number of a step that Python
        reads after the loop; None for other errors.
        """
        named = set(_SYMBOLS.findall(str(error)))
        for loop in self._results.loops if error is not None else ():
            if loop.numbers is not None and not named.isdisjoint(map(str, loop.numbers)):
                return loop.refused("a number of one of its steps is read after it")
        return None

    def value(self, leaf: Any) -> Any:
        """Returns the value that stands for a tensor of a loop after it; other values as they are.

        :raises NotRolledError: for a tensor of one of the steps before the last one
        """
        return self._results.value(leaf)


def _is_list(value: Any) -> bool:
    """True for a plain list or tuple, and for a list of results."""
    return type(value) in (list, tuple) or isinstance(value, ResultList)


def _is_apart(value: Any) -> bool:
    return isinstance(value, TakenApart)


def _is_new(value: Any, held: Snapshot) -> bool:
    """True for a module that is none of the model."""
    return (
        isinstance(value, torch.nn.Module) and bool(held.objects) and id(value) not in held.objects
    )


def _is_of_loop(item: Any) -> bool:
    """True for what other lists of loops have."""
    return isinstance(item, (torch.Tensor, PartOfList))


def _as_tuple(parts: TakenApart) -> tuple[torch.Tensor, ...]:
    return tuple(tuple.__iter__(parts))


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _without_values(mode: FakeTensorMode, tensor: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor, FakeTensor):
        return tensor
    with WithoutFunctions():  # the model reads none of these sizes
        return mode.from_tensor(tensor, static_shapes=True)


def _is_plain(size: Any) -> bool:
    return not _is_symbolic(size)


def _is_symbolic(size: Any) -> bool:
    return isinstance(size, torch.SymInt) and not size.node.expr.is_number


def _traced_step_by_step(attempt: Attempt) -> Retry | None:
    loops = attempt.reader(RolledLoops)
    failure = None if loops is None else loops.failure or loops.left_number(attempt.error)
    if not isinstance(failure, NotRolledError) or wants_int_first(attempt):
        return None
    line, request = failure.line, attempt.request
    times = request.ends.count(line)
    apart = {0: OF_FIRST, OF_FIRST: OF_BOTH, OF_LAST: OF_BOTH} if failure.at_ends else {}
    apart = {0: OF_LAST, OF_FIRST: OF_BOTH} if failure.at_last else apart
    # torch says of an argument that it "must be Number, not StepIndex"
    is_int = failure.is_int or StepIndex.__name__ in str(attempt.error)
    if is_int and line not in request.valued:
        return Retry(replace(request, valued=(*request.valued, line)))
    if times in apart:
        others = [one for one in request.ends if one != line]
        return Retry(replace(request, ends=(*others, *[line] * apart[times])))
    reason = str(failure)
    return Retry(request.unrolling([line], reason, here=failure.here), reason)


ROLLED_LOOPS = Repair(
    "rolled loops",
    "A trace runs every step of a Python loop over an axis, so that its graph holds for one number of"
    " steps. Where each step is proven to compute the same, the loop is one ``scan`` of torch.",
    until="tests/repairs/test_rolled_loops.py::test_a_loop_over_steps_is_one_graph_for_all_lengths",
    link="https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_higher_order_ops/scan.py",
    always=True,
    failed=_traced_step_by_step,
)
