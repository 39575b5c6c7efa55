"""Branches on values that may be traced on one side: what they do counts where their test says so.

    for expert, layer in enumerate(self.experts):
        rows, place = torch.where(chosen == expert)
        if rows.numel() == 0:
            continue
        out[rows] += weights[rows, place, None] * layer(x[rows])

A trace cannot decide by the number of rows. But whether it is 0 need not be known: the rest of the step is
traced, and writes to ``out`` only where the test says so (:mod:`.live_part`). So is the body of an ``if``
without ``else``. A tensor that the body assigns to a name is chosen where something reads the name later:

    if mask.any():                     body = x * 2
        x = x * 2                      x = where(mask.any(), body, x)

This is right where nothing else of the body is seen after it: it does not leave its function or its loop,
draws no random numbers, and changes nothing that Python keeps, which is compared. A name that is read later
has a tensor of the same shape and dtype on both sides, which the body has made, or a number that is the same
where the test fails: ``begin = begin + count`` under ``if count == 0: continue``. A list may have a tensor more
if that has no rows where the test fails, and if the function only joins it with ``torch.cat``. Otherwise the
values of the example decide (:mod:`.numbers.by_values`).

What the body computes where its test fails is thrown away; where that ends with an error, so does the call
of the program.
"""

from __future__ import annotations

import ast
import contextlib
import dis
import functools
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

import sympy
import torch

from ..model_source.frames import frame_of_model, is_code_of_model, reading_frame
from ..model_source.lines import line_of
from ..model_source.source_loops import (
    lists_only_joined,
    may_leave,
    names_set,
    read_before_set,
    skips_step,
)
from ..model_source.source_tests import SourceTest, branch_asked_at, has_positions
from ..observing.effects import Effect
from ..observing.reach import Snapshot
from ..proofs.decisions import taken_by
from ..torch_internals.sizes import ShapeEnv, SymNode, expression_of
from ..torch_internals.tensor_marks import version_of_tensor
from ..torch_internals.trees import tree_map_only
from .live_part import (
    WRITES,
    LivePart,
    held_by,
    is_traced,
    is_write,
    is_written,
    names_of_cells,
    node_of,
    unseen_state,
)
from .repair import Attempt, Repair, Retry
from .trace_mode import InVainError, Reader

__all__ = ["VALUE_BRANCHES", "ValueBranches"]

#: symbols of torch that stand for values
_OF_VALUES = ("u", "zuf")
#: a model with more branches that were traced in vain has all of them decided by values
_MOST_DECIDED = 4
_UNSEEN = object()
_READS = (torch.Tensor.__bool__, version_of_tensor)
#: how blocks begin that let errors pass
_PASSING = ("torch.", "autocast(", "no_grad(", "record_function(")


class NotTakenError(InVainError):
    """A branch is decided by values."""

    words = "the branch at {line} is decided by values: {reason}"


@dataclass(frozen=True, slots=True)
class _Part:
    """The statements that a test decides, and the answer that leads to them. ``names`` are those that
    they set and whose values something reads that knew others, ``joined`` those of lists whose tensors
    the function only joins.
    """

    statements: Sequence[ast.stmt]
    answer: bool
    names: frozenset[str]
    joined: frozenset[str]

    def is_at(self, frame: FrameType) -> bool:
        """True where an instruction of the statements runs in a frame."""
        place = _places_of(frame.f_code)[frame.f_lasti // 2]
        first, last = self.statements[0], self.statements[-1]
        if place is None or last.end_lineno is None or last.end_col_offset is None:
            return False
        return (first.lineno, first.col_offset) <= place < (last.end_lineno, last.end_col_offset)


@functools.lru_cache(maxsize=1024)
def _part_of(code: CodeType, instruction: int) -> _Part | None:
    """The part that is decided where an instruction asks; None where it may not be traced."""
    test = branch_asked_at(code, instruction)
    if test is None or not isinstance(test.branch, ast.If) or test.others:
        return None
    body: Sequence[ast.stmt] = test.branch.body
    rest = _rest_of_step(test) if len(body) == 1 and isinstance(body[0], ast.Continue) else None
    if rest is None and skips_step(body):
        return None
    statements = body if rest is None else rest
    is_error = any(isinstance(one, ast.Raise) for one in statements) or _is_caught(test)
    if not statements or is_error or may_leave(statements):
        return None
    names, early = names_set(statements), read_before_set(statements)
    if not test.is_plain(names, code):
        return None
    read = {name for name in names if name in early or not test.is_read_by(statements, name)}
    local = set(code.co_varnames) - set(code.co_cellvars)
    joined = lists_only_joined(test.function) & local
    return _Part(statements, (rest is None) != test.is_negated, frozenset(read), joined)


def _is_caught(test: SourceTest) -> bool:
    """True where the function goes on after an error in a branch: what stands behind it in a ``try``, or in a
    ``with`` that suppresses errors, would not run.
    """
    around = (node for node in ast.walk(test.function) if test.branch in ast.walk(node))
    return any(
        (isinstance(node, ast.Try) and bool(node.handlers) and _has(node.body, test.branch))
        or (isinstance(node, ast.With) and any(map(_may_suppress, node.items)))
        for node in around
    )


def _has(statements: Sequence[ast.stmt], node: ast.AST) -> bool:
    return any(node in ast.walk(one) for one in statements)


def _may_suppress(item: ast.withitem) -> bool:
    """True for a block but those of torch, which let errors pass, and ``nullcontext()``."""
    text = ast.unparse(item.context_expr)
    return not text.startswith(_PASSING) and "nullcontext" not in text


def _rest_of_step(test: SourceTest) -> Sequence[ast.stmt] | None:
    """The statements after ``if ...: continue`` in the body of its ``for`` loop."""
    for node in ast.walk(test.function):
        if isinstance(node, ast.For) and test.branch in node.body:
            return node.body[node.body.index(test.branch) + 1 :]
    return None


@functools.lru_cache(maxsize=1024)
def _places_of(code: CodeType) -> list[tuple[int, int] | None]:
    """The line and the column of each instruction."""
    positions = getattr(code, "co_positions")()  # noqa: B009  # not known to Python 3.10
    return [
        None if line is None or column is None else (line, column)
        for line, _, column, _ in positions
    ]


@dataclass(slots=True, eq=False)
class _Taken:
    """A part that is traced: its frame, what it writes, and what its names were."""

    part: _Part
    frame: FrameType
    line: str
    live: LivePart
    held: tuple[Snapshot, Snapshot]
    before: Mapping[str, Any]
    #: what the trace asserts of values where the part begins
    asserted: tuple[int, dict[Any, str]]
    #: the value of a symbol where the part does not count, if its test says so
    otherwise: Mapping[Any, Any]
    #: the nodes that may read it: they choose between what its names are and were, or join tensors
    choices: set[torch.fx.Node] = field(default_factory=set)

    def runs(self) -> bool:
        """True while the part runs, or what it called."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame is not self.frame:
            frame = frame.f_back
        return frame is not None and self.part.is_at(frame)

    def is_left_by_error(self) -> bool:
        """True where the frame is over, and did not end by a return."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame is not self.frame:
            frame = frame.f_back
        last = dis.opname[self.frame.f_code.co_code[self.frame.f_lasti]]
        return frame is None and self.part.is_at(self.frame) and not last.startswith("RETURN")

    def joins(self, effect: Effect) -> bool:
        """True for tensors more in a list that is only joined, where they have no rows unless the part
        counts.
        """
        held: Any = getattr(effect.holder, "value", None)
        known = [self.frame.f_locals.get(name) for name in self.part.joined]
        if held is None or all(one is not held for one in known):
            return False
        new, zeros = list(held)[len(effect.before) :], self.live.empty(self.otherwise)
        return [*map(id, held)][: -len(new)] == [*map(id, effect.before)] and all(
            isinstance(one, torch.Tensor)
            and self.live.made(one)
            and one.ndim > 0
            and sympy.sympify(expression_of(one.shape[0])).subs(self.otherwise).subs(zeros) == 0
            for one in new
        )

    def is_same_number(self, before: Any, after: Any) -> bool:
        """True for numbers that are equal where the part does not count."""
        if not isinstance(before, (int, torch.SymInt)) or not isinstance(after, torch.SymInt):
            return False
        difference = expression_of(after) - expression_of(before)
        return bool(sympy.expand(difference.subs(self.otherwise)) == 0)


class ValueBranches(Reader):
    """Inside the block such branches are traced on the side that does something; ``taken`` has their
    lines.

    ``decided`` are the lines of branches that values decide. ``reach`` gives a snapshot of the model.
    """

    def __init__(
        self,
        reach: Callable[[], Snapshot],
        decided: Iterable[str] = (),
        *,
        is_rolling: Callable[[], bool] = lambda: False,
    ) -> None:
        self.taken: list[str] = []
        self._reach, self._is_rolling = reach, is_rolling
        self._decided = frozenset(decided)
        self._running: list[_Taken] = []
        self._over: list[_Taken] = []
        #: by the tensor that a body has assigned to a name: the tensor, and what is chosen
        self._chosen: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        #: the lists that parts add tensors to, with these parts, by the list
        self._joined: dict[int, tuple[Any, list[_Taken]]] = {}
        self._held: Snapshot | None = None
        self._hook = contextlib.ExitStack()

    def __enter__(self) -> Any:
        if has_positions():
            self._hook.enter_context(taken_by(self._takes))
        return self

    def __exit__(self, *error: Any) -> None:
        self._hook.close()

    def ended(self, reason: str) -> NotTakenError | None:
        """The error with which the part that runs is not traced, for this reason; None outside of parts."""
        self._close_ended()
        running = self._running[-1].line if self._running else None
        return None if running is None else self.failed(NotTakenError(running, reason))

    def wants(self, func: Callable[..., Any]) -> bool:
        """True for the function that asks whether a tensor is true, and for all functions once a part was
        traced.
        """
        if func in _READS:
            return func is torch.Tensor.__bool__ or bool(self.taken)
        return bool(self._running or self._chosen)

    def on_call(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Lets a part write only where its test says so."""
        self._close_ended()
        if func == version_of_tensor and reading_frame(2, func) is not None:
            raise self.failed(NotTakenError(self.taken[-1], "the writes to a tensor are counted"))
        if self._chosen:
            args, kwargs = tree_map_only(torch.Tensor, self.value, (args, kwargs))
        if func is torch.Tensor.__bool__:
            answer = self._taken(frame_of_model(), lambda: args[0].reshape(()) != 0)
            return func(*args, **kwargs) if answer is None else answer
        if not self._running:
            return func(*args, **kwargs)
        live = self._running[-1].live
        write = live.overwritten if func not in WRITES and is_write(func) else live.written
        return write(func, args, kwargs)

    def _takes(self, value: SymNode, frame: FrameType | None) -> bool | None:
        """The answer to a test that is about values; None for any other one."""
        symbols = value.expr.free_symbols
        if not any(str(symbol).startswith(_OF_VALUES) for symbol in symbols):
            return None
        self._close_ended()
        holds: Any = torch.SymBool(value)  # type: ignore[no-untyped-call]
        return self._taken(frame, lambda: torch.scalar_tensor(holds) != 0, value.expr)

    def _taken(
        self, frame: FrameType | None, condition: Callable[[], torch.Tensor], test: Any = None
    ) -> bool | None:
        """The answer by which the part runs that a test decides, where that may be traced."""
        if frame is None or not is_code_of_model(frame.f_code.co_filename) or self._is_rolling():
            return None
        line = line_of(frame)
        part = None if line in self._decided else _part_of(frame.f_code, frame.f_lasti)
        if part is None or not is_traced() or unseen_state(frame):
            return None
        holds = condition()
        is_live = holds if part.answer else ~holds
        around = self._running[-1].live if self._running else None
        watched = part.names | names_of_cells(frame)
        names = {name: self.value(frame.f_locals.get(name, _UNSEEN)) for name in watched}
        held = (self._held_by_model(), held_by(Snapshot(), frame))
        live = LivePart(is_live, around)
        otherwise = _solved(test if test is None or not part.answer else sympy.Not(test))
        taken = _Taken(part, frame, line, live, held, names, _asserted(holds), otherwise)
        self._running.append(taken)
        self.taken.append(line)
        return part.answer

    def _held_by_model(self) -> Snapshot:
        """A snapshot of the model, the last one where that is still right."""
        if self._held is None or self._held.changed():
            self._held = self._reach()
        return self._held

    def _close_ended(self) -> None:
        """Closes the parts that no longer run."""
        while self._running and not self._running[-1].runs():
            self._close(self._running.pop())

    def _close(self, taken: _Taken) -> None:
        taken.live.close()
        self._over.append(taken)
        if taken.is_left_by_error():
            raise self.failed(NotTakenError(taken.line, "an error ends it"))
        n_asserted, ranges = taken.asserted
        n_now, ranges_now = _asserted(taken.live.is_live, ranges)
        if n_now > n_asserted or any(ranges_now.get(s) != known for s, known in ranges.items()):
            reason = "what it computes takes some values only"
            raise self.failed(NotTakenError(taken.line, reason))
        effects = [effect for held in taken.held for effect in held.effects()]
        changes = [effect for effect in effects if not effect.is_write]
        if changes and all(map(taken.joins, changes)):
            for held in (effect.holder.value for effect in changes):
                self._joined.setdefault(id(held), (held, []))[1].append(taken)
            changes = []
        if changes:
            place = changes[0].place or "a container"
            raise self.failed(NotTakenError(taken.line, f"{place} changes in it"))
        assigned: set[int] = set()
        for name, before in taken.before.items():
            after = taken.frame.f_locals.get(name, _UNSEEN)
            if after is before or self.value(after) is before:
                continue
            if id(after) in assigned:
                reason = f"{name} and another name are one tensor"
                raise self.failed(NotTakenError(taken.line, reason))
            self._choose(taken, name, before, after)
            assigned.add(id(after))

    def _choose(self, taken: _Taken, name: str, before: Any, after: Any) -> None:
        """Puts a choice in the place of a tensor that the part has assigned to a name; a part in it may
        have done so before.
        """
        if taken.live.has_written(after) or taken.is_same_number(before, after):
            return
        assigned = self.value(after)
        if not _are_alike(before, assigned) or not taken.live.made(assigned):
            reason = f"{name} is read after it, and not as a tensor like before"
            raise self.failed(NotTakenError(taken.line, reason))
        chosen = torch.where(taken.live.is_live, assigned, before)
        node = node_of(chosen)
        if node is not None:
            taken.choices.add(node)
        self._chosen[id(after)] = after, chosen

    def value(self, leaf: Any) -> Any:
        """The choice that stands for a tensor of a part; any other leaf as it is."""
        found = self._chosen.get(id(leaf))
        return leaf if found is None else found[1]

    def checked(self, outputs: Iterable[Any]) -> list[Any]:
        """The results of the run, where nothing of the parts is seen after them but what they write.

        :raises NotTakenError: elsewhere
        """
        while self._running:
            self._close(self._running.pop())
        chosen = list(map(self.value, outputs))
        returned = {node_of(leaf) for leaf in chosen}
        for _, parts in self._joined.values():
            some = torch.stack([taken.live.is_live for taken in parts]).any()
            torch.ops.aten._assert_async.msg(some, f"nothing to join after {parts[0].line}")
            for taken in parts:
                taken.choices.update(taken.live.joins())
        for taken in self._over:
            why = taken.live.seen_outside(returned, taken.choices)
            if why:
                raise self.failed(NotTakenError(taken.line, why))
        if is_written({node for taken in self._over for node in taken.choices}):
            raise self.failed(NotTakenError(self._over[0].line, "a chosen tensor is written to"))
        return chosen


def _solved(test: Any) -> Mapping[Any, Any]:
    """The value of a symbol where a test holds: ``{u0: 3}`` for ``u0 == 3``; empty for other tests."""
    sides = test.args if isinstance(test, sympy.Eq) else ()
    return {one: other for one, other in (sides, sides[::-1]) if one.is_Symbol} if sides else {}


def _asserted(tensor: Any, about: Collection[Any] | None = None) -> tuple[int, dict[Any, str]]:
    """Counts the assertions about values in the trace of a tensor, and gives the ranges of these values;
    with ``about`` those about these values alone.
    """
    environment: ShapeEnv = tensor.fake_mode.shape_env
    asserts = environment.deferred_runtime_asserts.items()
    asserted = sum(len(found) for s, found in asserts if about is None or s in about)
    ranges = environment.var_to_range.items()
    return asserted, {s: str(found) for s, found in ranges if str(s).startswith(_OF_VALUES)}


def _are_alike(before: Any, after: Any) -> bool:
    """True for two tensors of one dtype, device and shape, without asking about sizes."""
    if type(before) is not type(after) or not isinstance(before, torch.Tensor):
        return False
    is_like = before.dtype == after.dtype and before.device == after.device
    return is_like and [*map(expression_of, before.shape)] == [*map(expression_of, after.shape)]


def _decided_by_values(attempt: Attempt) -> Retry | None:
    """The next attempt has the branch that was traced in vain decided by values; after a few of them
    all branches.
    """
    branches = attempt.reader(ValueBranches)
    if branches is None or branches.failure is None:
        return None
    request = attempt.request.deciding(branches.failure.line)
    if len(request.decided) > _MOST_DECIDED:
        request = attempt.request.without_repair(VALUE_BRANCHES)
    return Retry(request, str(branches.failure))


def _meets_value(attempt: Attempt) -> Retry | None:
    if not attempt.depends_on_values:
        branches = attempt.reader(ValueBranches)
        in_vain = attempt.error is not None and branches is not None and branches.taken
        return Retry(attempt.request.without_repair(VALUE_BRANCHES)) if in_vain else None
    return attempt.wants(VALUE_BRANCHES)


VALUE_BRANCHES = Repair(
    "branches on values",
    "``if rows.numel() == 0: continue`` and ``if mask.any():`` end a trace. Where nothing but writes and names"
    " with tensors is seen after the statements that such a test decides, they are traced, and count only"
    " where the test says so.",
    until="tests/repairs/test_value_branches.py::test_experts_without_tokens_are_skipped",
    link="https://docs.pytorch.org/docs/stable/user_guide/torch_compiler/export.html",
    failed=_decided_by_values,
    retry=_meets_value,
)
