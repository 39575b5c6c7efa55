"""A loop over the rows of ``mask.nonzero()`` visits all rows that could be among them.

A mixture of experts visits those experts that some token chose, and their number is a value:

    hit = (chosen.sum((-1, -2)) > 0).nonzero()              # chosen: [experts, k, tokens]
    for expert in hit:
        place, token = torch.where(chosen[expert[0]])
        found = self.experts[expert[0]](x[token]) * weights[token, place, None]
        out.index_add_(0, token, found)

A trace would have the experts of its example, and a check that a call has as many. But an expert
whose step leaves nothing behind but what it writes to ``out`` may be visited though no token chose
it, if nothing is written then. So each expert is visited, with a number of Python, and each write to
rows of a tensor writes ``where(mask[expert], found, 0)``: it adds nothing unless the row is in the
loop. In the same order the same numbers are added.

Masks may have a row more than there are experts, at which the model makes an error. The program checks
that such a row is in no loop. The loop may also go over the numbers of the rows, or over the values of
``chosen.unique()`` (:mod:`.hit_values`).

``if token.numel() == 0: continue`` ends a step by a value. There the rest of the step counts as well
only where the number is not 0. :mod:`onlooker.repairs.value_branches` does so for tests that a trace
refuses; here the function is answered, so that runs with plain sizes, in which the number of rows is an
int as any other, take the same way and prove the graph for other sizes.

This is right where nothing else of a step is seen after it. The nodes of a step are used by it alone,
or are such writes; a step draws no random numbers; no name that it sets is read later or by the next
step; and Python keeps nothing else of it, which is compared. Otherwise the loop is that of Python.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from types import FrameType
from typing import Any

import torch

from ...model_source.frames import frame_of_model
from ...model_source.lines import line_of
from ...model_source.source_loops import ends_step, loop_over, names_read_after
from ...model_source.source_tests import expressions_around
from ...observing.reach import Snapshot
from ...patches.swap import swapped
from ...torch_internals.fake_tensors import FakeTensor
from ...torch_internals.tracing import get_proxy_mode
from ..live_part import WRITES, LivePart, held_by, is_write, node_of, unseen_state
from ..repair import Attempt, Repair, Retry
from ..trace_mode import InVainError, Reader
from .hit_values import BINS, LISTS, MOVES, UNIQUE, Hits, counted

__all__ = ["HIT_ROWS", "HitRows", "NotVisitedError"]

#: more rows of all loops are not left out
_MOST_REFUSED = 2
_NONZERO = frozenset({torch.nonzero, torch.Tensor.nonzero})
_FOUND = _NONZERO | UNIQUE | MOVES
_APART = frozenset({torch.unbind, torch.Tensor.unbind})
_COUNTS = frozenset({torch.numel, torch.Tensor.numel})
_FORMATS = frozenset({torch.Tensor.__format__})
_ALL = _FOUND | BINS | LISTS | _APART | WRITES | _COUNTS | _FORMATS
_UNSEEN = object()


class NotVisitedError(InVainError):
    """A loop is that of Python."""

    words = "the loop at {line} visits the rows of the example: {reason}"


class HitRows(Reader):
    """Inside the block the loops over the rows of ``nonzero()`` visit all rows.

    ``left_out`` are the lines of loops that are those of Python. With ``like`` the loops at these lines
    are visited so, and no others, in a run with plain sizes. ``refused`` are the rows, with the lines of
    their loops, at which the model makes an error. ``reach`` gives a snapshot of the model.
    """

    def __init__(
        self,
        left_out: Iterable[str] = (),
        *,
        like: Iterable[str] | None = None,
        refused: Iterable[tuple[str, int]] = (),
        reach: Callable[[], Snapshot] | None = None,
        is_rolling: Callable[[], bool] = lambda: False,
    ) -> None:
        #: the line of the loop whose step runs, and the number of its row
        self.line, self.number = "", 0
        self.visited: list[str] = []
        self._left_out, self._like = frozenset(left_out), like if like is None else frozenset(like)
        self.refused = frozenset(refused)
        self._reach, self._is_rolling = reach, is_rolling
        #: the rows that steps were given: their numbers
        self.numbers: list[Any] = []
        #: the row after the last one of loops over values, by their lines
        self.ends: dict[str, int] = {}
        #: what loops may go over, by the tensor
        self._hits: dict[int, Hits] = {}
        self._swaps = contextlib.ExitStack()
        self._steps: list[_Step] = []
        self._step: _Step | None = None

    def __enter__(self) -> Any:
        plain = FakeTensor.tolist  # no function of torch that a mode is told of

        def tolist(tensor: FakeTensor) -> Any:
            loop = self._loop(tensor, is_list=True)
            return plain(tensor) if loop is None else loop

        self._swaps.enter_context(swapped(FakeTensor, "tolist", tolist))
        return self

    def __exit__(self, *error: Any) -> None:
        self._swaps.close()

    def wants(self, func: Callable[..., Any]) -> bool:
        """True for what finds rows, and for each write of a step."""
        return func in _ALL or (self._step is not None and is_write(func))

    def on_call(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Visits the rows of a loop, and lets a step write only where its row is in the loop."""
        step = self._step
        if func in _FOUND:
            result = func(*args, **kwargs)
            found = Hits.found(func, args, kwargs, result, self._hits.get(id(args[0])))
            if found is not None:
                self._hits[id(result)] = found
            return result
        if func in _APART or func in LISTS:
            loop = self._loop(args[0], func in LISTS) if args[1:] in ((), (0,)) else None
            return func(*args, **kwargs) if loop is None else loop
        if func in BINS:
            counts = counted(*args, **kwargs)
            return func(*args, **kwargs) if counts is None else counts
        if step is None:
            return func(*args, **kwargs)
        if func in _COUNTS and step.ends_at(frame_of_model()):
            step.only_if(torch.scalar_tensor(func(*args, **kwargs)) != 0)
            return 1  # it is compared with 0, and nothing else
        if func in _FORMATS and getattr(args[0], "constant", None) is not None:
            return format(args[0].item(), *args[1:])  # the text of a fake tensor is not its number
        write = step.written if func in WRITES or not is_write(func) else step.overwritten
        return write(func, args, kwargs)

    def _loop(self, value: Any, is_list: bool) -> _Visits | None:
        """The steps of the loop over some rows that a frame of the model begins; None for any other
        use, and for any other tensor.
        """
        hits, frame = self._hits.get(id(value)), frame_of_model()
        if frame is None or hits is None or not hits.is_whole():
            return None
        if self._step is not None or self._is_rolling():
            return None
        line = line_of(frame)
        chosen = line not in self._left_out if self._like is None else line in self._like
        loop = loop_over(frame.f_code, frame.f_lasti) if chosen else None
        known = [number for one, number in self.refused if one == line]
        count = None if loop is None else hits.count(max(known, default=None))
        if loop is None or count is None:
            return None
        if hits.is_of_values:
            self.ends[line] = count
        return _Visits(self, frame, line, loop, hits.steps(count, is_list))

    def begin(self, step: _Step) -> None:
        """From here on the functions are those of a step."""
        self._step, self.line = step, step.line

    def end(self, step: _Step) -> None:
        """A step is over."""
        step.close()
        self._steps.append(step)
        self._step, self.line = None, ""

    def held(self, frame: FrameType) -> Snapshot | None:
        """A snapshot of the model and of the local names of a frame; None in a run with plain
        sizes.
        """
        return None if self._reach is None else held_by(self._reach(), frame)

    def check(self, outputs: Iterable[Any]) -> None:
        """Passes where nothing of the steps is seen after them but what they write.

        :raises NotVisitedError: elsewhere
        """
        if get_proxy_mode() is None:
            return
        returned = {node_of(leaf) for leaf in outputs}
        for step in self._steps:
            why = step.seen_outside(returned)
            if why:
                raise self.failed(NotVisitedError(step.line, why))


class _Visits:
    """The steps of one loop."""

    def __init__(
        self,
        rows: HitRows,
        frame: FrameType,
        line: str,
        loop: ast.For,
        steps: Iterable[tuple[torch.Tensor, Any]],
    ) -> None:
        self._rows, self._frame, self._line, self._steps = rows, frame, line, steps
        self._loop, self._names = loop, names_read_after(frame.f_code.co_filename, loop)

    def __iter__(self) -> Iterator[Any]:
        rows, line = self._rows, self._line
        rows.visited.append(line)
        if self._names is None:
            raise self._failed("its body leaves it, or sets what other functions read")
        held = rows.held(self._frame)
        if held is not None and (unseen := unseen_state(self._frame)):
            raise self._failed(f"{unseen} may change unseen")
        for number, (is_live, found) in enumerate(self._steps):
            rows.number = number
            if (line, number) in rows.refused:
                torch.ops.aten._assert_async.msg(~is_live, f"the model refuses {number} at {line}")
                continue
            step = _Step(line, self._frame, self._loop, is_live)
            before = self._values()
            rows.begin(step)
            rows.numbers.append(found)
            yield found
            rows.end(step)
            for name, value in self._values().items():
                if value is not before[name] and not step.has_written(value):
                    raise self._failed(f"{name} is read after a step that sets it")
        changes = [] if held is None else held.effects()
        if changes:
            raise self._failed(f"{changes[0].place or 'a container'} changes in a step")

    def _failed(self, reason: str) -> NotVisitedError:
        return self._rows.failed(NotVisitedError(self._line, reason))

    def _values(self) -> dict[str, Any]:
        """The values of the names that the loop sets and that are read later."""
        known = self._frame.f_locals
        return {name: known.get(name, _UNSEEN) for name in self._names or ()}


class _Step(LivePart):
    """One step: ``is_live`` is True where its row is in the loop."""

    def __init__(self, line: str, frame: FrameType, loop: ast.For, is_live: torch.Tensor) -> None:
        super().__init__(is_live)
        self.line = line
        self._frame, self._loop = frame, loop

    def ends_at(self, frame: FrameType | None) -> bool:
        """True where a frame is at the call in ``if rows.numel() == 0: continue`` of the loop."""
        if frame is not self._frame:
            return False
        around = expressions_around(frame.f_code, frame.f_lasti)
        if len(around) < 2 or not isinstance(around[0], ast.Call):
            return False
        return ends_step(self._loop, around[1], around[0])

    def only_if(self, condition: torch.Tensor) -> None:
        """The rest of the step counts only where a condition holds as well."""
        self.is_live = self.is_live & condition


def _visited_by_python(attempt: Attempt) -> Retry | None:
    rows = attempt.reader(HitRows)
    if rows is None or attempt.error is None:
        return None
    if rows.failure is not None:
        reason = str(rows.failure)
        return Retry(attempt.request.unrolling([rows.failure.line], reason), reason)
    if not rows.line:
        return None
    refused = attempt.request.refused_rows
    if isinstance(attempt.error, IndexError) and len(refused) < _MOST_REFUSED:
        refused = (*refused, (rows.line, rows.number))
        return Retry(replace(attempt.request, refused_rows=refused))
    why = str(NotVisitedError(rows.line, attempt.first_line))
    return Retry(attempt.request.unrolling([rows.line], why), why)


HIT_ROWS = Repair(
    "rows of nonzero",
    "A loop over ``mask.nonzero()`` or ``chosen.unique()``, as over the experts that some token chose, has as"
    " many steps as the mask has elements that are not 0, which is a value. All rows are visited, and those"
    " that are not in the loop write nothing.",
    until="tests/repairs/test_hit_rows.py::test_experts_that_no_token_of_the_example_chose",
    link="https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_tensor.py",
    always=True,
    failed=_visited_by_python,
)
