"""``while`` loops that count: their steps are those of a ``for`` loop over a ``range``.

``while t < x.shape[1]: h = cell(x[:, t], h); t += 2`` asks at each step whether a number that it counts is below a
size. Where the body adds the same to each name of the test that it sets, the test says how many steps there are. The
loop is rolled then, and the answers are those of its steps: yes before each, and no after the last. A test after
``and`` is asked in each step.
"""

from __future__ import annotations

import ast
import contextlib
import sys
from collections.abc import Collection, Iterator
from types import FrameType
from typing import Any, Protocol

import torch

from ...model_source.lines import line_of
from ...model_source.source_loops import (
    counted_names,
    first_test,
    names_of,
    names_set,
    while_asked_at,
    whiles_in,
)
from ...pytrees.nodes import is_size
from .kept_between_steps import number_of
from .step_indices import StepIndex
from .steps import Driver, Loop

__all__ = ["WhileLoops"]

#: what a test may be made of
_PLAIN = (
    *(ast.Name, ast.Constant, ast.BinOp, ast.UnaryOp, ast.Attribute, ast.Subscript, ast.Compare),
    *(ast.expr_context, ast.operator, ast.unaryop, ast.cmpop),
)
_SIZES = ("len", "size")
_Place = tuple[FrameType, ast.While]
_ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)


class WhileLoops:
    """The ``while`` loops of one run that are rolled, by their frames.

    A comparison of a symbolic size, or of the index of a step, asks :meth:`goes_on`. In a run with plain sizes such
    a loop begins before its line, so that the number that it counts is an index by the time that it is compared.
    """

    def __init__(self, driver: WhileDriver) -> None:
        self._driver = driver
        self._running: dict[_Place, Iterator[Any]] = {}
        #: the loops whose next step has begun before its test
        self._begun: set[_Place] = set()

    def goes_on(self, frame: FrameType) -> bool | None:
        """The answer to the test of a loop that is rolled, for which a frame asks; None for any other question.

        :raises NotRolledError: where its steps are no scan
        """
        asked = while_asked_at(frame.f_code, frame.f_lasti)
        if asked is None:
            return None
        if (frame, asked) in self._begun:
            self._begun.remove((frame, asked))
            return True
        return self._next_step(frame, asked)

    def _next_step(self, frame: FrameType, asked: ast.While) -> bool | None:
        """Begins the next step of a loop; False after its last one, None for one that is not rolled."""
        place = frame, asked
        if place not in self._running:
            loop = self._counted(frame, asked)
            if loop is None:
                return None
            self._running[place] = iter(self._driver.run(loop))
        for _ in self._running[place]:
            return True
        del self._running[place]
        return False

    @contextlib.contextmanager
    def beginning_at(self, lines: Collection[str]) -> Iterator[None]:
        """Inside the block the loops at some lines begin before their line, where no debugger is told of lines."""

        def of_call(frame: FrameType, *_: Any) -> Any:
            return of_line if whiles_in(frame.f_code.co_filename) else None

        def of_line(frame: FrameType, event: str, _: Any) -> Any:
            loops = whiles_in(frame.f_code.co_filename) if event == "line" else {}
            asked = loops.get(frame.f_lineno)
            if asked is None or line_of(frame) not in lines or _has_index(frame, asked):
                return of_line
            if self._next_step(frame, asked) and _has_index(frame, asked):
                self._begun.add((frame, asked))
            return of_line

        if sys.gettrace() is not None or not any(": while " in line for line in lines):
            yield
            return
        sys.settrace(of_call)
        try:
            yield
        finally:
            sys.settrace(None)

    def end(self) -> None:
        """Forgets the frames."""
        self._running.clear()
        self._begun.clear()

    def _counted(self, frame: FrameType, asked: ast.While) -> Loop | None:
        """The steps of a loop that a frame begins; None where it counts in no way that is known."""
        line = line_of(frame)
        if not self._driver.rolls_at(line):
            return None
        counted = counted_names(frame.f_code.co_filename, asked.lineno)
        test = first_test(asked)
        assert isinstance(test, ast.Compare)
        names = names_of(list(ast.walk(test)), ast.Load) & names_set(asked.body)
        if not names or not names <= counted.keys() or not _is_plain(test):
            return None
        begins = {name: frame.f_locals.get(name) for name in names}
        growths = {name: number_of(counted[name], frame) for name in names}
        if not all(map(is_size, begins.values())) or not all(map(_grows, growths.values())):
            return None
        loop = Loop(self._driver, 0, 1, 0, line)
        indices = {name: StepIndex.of(loop, begins[name], growths[name]) for name in names}
        loop.count = _steps_of(test, frame, **indices)
        is_symbolic = isinstance(loop.count, torch.SymInt)
        return loop if is_symbolic or (self._driver.follows and loop.count) else None


def _has_index(frame: FrameType, asked: ast.While) -> bool:
    """True where a loop compares the index of a step."""
    names = names_of(list(ast.walk(first_test(asked))), ast.Load)
    return any(isinstance(frame.f_locals.get(name), StepIndex) for name in names)


class WhileDriver(Driver, Protocol):
    """Runs the steps of loops, and says which lines are traced step by step."""

    @property
    def follows(self) -> bool:
        """True where the loops of another trace are rolled."""

    def rolls_at(self, line: str) -> bool:
        """False for a line whose loop is traced step by step."""


def _grows(growth: Any) -> bool:
    return type(growth) is int and growth != 0


def _steps_of(test: ast.Compare, frame: FrameType, **indices: StepIndex) -> Any:
    """How many steps there are before a comparison with indices is False; None where that is not known."""
    left, right = (
        number_of(ast.Expression(side), frame, **indices) for side in (test.left, *test.comparators)
    )
    kind = type(test.ops[0])
    if kind in (ast.Gt, ast.GtE):
        left, right = right, left
    if kind not in _ORDERS or not all(map(_is_number, (left, right))):
        return None
    (first, each), (end, falls) = _first_and_each(left), _first_and_each(right)
    nearer, distance = each - falls, end - first
    if type(nearer) is not int or nearer <= 0:
        return None
    is_open = kind in (ast.Lt, ast.Gt)
    return (distance + nearer - 1) // nearer if is_open else distance // nearer + 1


def _is_number(value: Any) -> bool:
    return is_size(value) or isinstance(value, StepIndex)


def _first_and_each(value: Any) -> tuple[Any, Any]:
    """The number of the first step, and by how much it grows with each."""
    return (value.first, value.each) if isinstance(value, StepIndex) else (value, 0)


def _is_plain(test: ast.expr) -> bool:
    """True for a comparison of numbers and sizes, which changes nothing."""
    calls = [node for node in ast.walk(test) if isinstance(node, ast.Call)]
    functions = [getattr(call.func, "attr", getattr(call.func, "id", "")) for call in calls]
    nodes = (node for node in ast.walk(test) if node not in calls)
    return all(isinstance(node, _PLAIN) for node in nodes) and all(
        name in _SIZES for name in functions
    )
