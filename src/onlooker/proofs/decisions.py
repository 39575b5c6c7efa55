"""The decisions about sizes that a trace takes, each with the line of the model that took it.

torch.export runs the model once with symbolic sizes. Wherever Python needs a plain bool or int of
such a size (``if x.shape[0] == 1``), torch decides for the example of the trace. Some decisions
become guards of the program; those that torch's own assumption "every size is at least 2" answers
leave no guard, although the program is wrong for the other answer. Together the decisions of the
model's Python are the path condition of the trace: under it the graph is what the model does.

Every decision passes ``ShapeEnv.evaluate_sym_node`` (checked with torch 2.10, 2.13 and 2.15); the
hook below stands there and in the comparisons of ``SymNode``, since ``size == 0`` of a positive
symbol is simplified to False before it is decided. Both are put back when the block ends.

Upstream: https://github.com/pytorch/pytorch/blob/v2.13.0/torch/fx/experimental/symbolic_shapes.py
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import sympy
from sympy.core.relational import Relational
from sympy.logic.boolalg import BooleanAtom, BooleanFunction

from ..model_source.frames import TORCH, Owner, owner_of
from ..model_source.lines import is_of_python, line_of
from ..patches.swap import swapped
from ..torch_internals.sizes import ShapeEnv, SymNode
from ..torch_internals.tracing import export_trace, inner_environment

__all__ = [
    "Decision",
    "EndedByDecisionError",
    "line_that_decides",
    "recorded_decisions",
    "taken_by",
]

#: where torch checks the guards of an inner graph
_GUARDS = os.path.join("torch", "_dynamo", "guards.py")
_COMPARISONS = {
    "eq": sympy.Eq,
    "ne": sympy.Ne,
    "lt": sympy.Lt,
    "le": sympy.Le,
    "gt": sympy.Gt,
    "ge": sympy.Ge,
}
#: functions of torch by which Python asks a symbolic value
_ASKING = frozenset({"evaluate", "bool_", "guard_bool", "__bool__"})
#: methods of ours that hand a function of torch on, for the model that calls it
_HANDING_ON = frozenset({"__torch_function__", "on_call"})
#: methods of ours between a decision and the model
_INSIDE = _HANDING_ON | {"evaluate_and_log", "line_that_decides", "warning"}
_DECIDERS: list[Callable[[SymNode, FrameType | None], bool | None]] = []
#: where torch 2.15 numbers an export as if it were compiled: by such a number an inner graph is known
_NUMBERING = "_non_strict_export_compile_context"
#: the attribute that a simplified comparison carries: its class and its two sides
_SIDES = "_onlooker_sides"


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision of a trace: ``condition`` is what held of the sizes of the example.

    ``condition`` is a condition of sympy over the symbols of torch, or ``relation`` with two sides
    where sympy would simplify it by torch's assumptions. ``sources`` gives the source of each
    symbol in torch (``L['x'].size()[1]``). ``by_model`` is True for the Python of the model, False
    for an operator of torch; ``guarded`` is True where torch made a guard of it. ``line`` is the
    line of the model.
    """

    relation: Any
    sides: tuple[Any, ...]
    answer: Any
    sources: Mapping[Any, str]
    by_model: bool
    guarded: bool
    line: str

    @property
    def symbols(self) -> frozenset[Any]:
        """The symbols of torch in the condition."""
        return frozenset(symbol for side in self.sides for symbol in side.free_symbols)

    @property
    def is_number(self) -> bool:
        """True where a size, or a number that is computed from sizes, became a plain number."""
        return self.relation is None and not isinstance(
            self.sides[0], (Relational, BooleanFunction, BooleanAtom)
        )


class EndedByDecisionError(Exception):
    """The trace was ended by what it decided; never seen by a user."""


@dataclass(slots=True)
class _Log:
    ends: Callable[[Decision], bool] | None = None
    decisions: dict[Any, Decision] = field(default_factory=dict)

    def add(self, decision: Decision) -> None:
        """Keeps each decision once per line; a guard counts more than the same decision without
        one.

        :raises EndedByDecisionError: where the trace shall end there
        """
        key = (
            decision.relation,
            decision.sides,
            str(decision.answer),
            decision.by_model,
            decision.line,
        )
        known = self.decisions.get(key)
        if known is None or (decision.guarded and not known.guarded):
            self.decisions[key] = decision
        if self.ends is not None and self.ends(decision):
            raise EndedByDecisionError(f"a size became a number at {decision.line}")


@contextlib.contextmanager
def recorded_decisions(ends: Callable[[Decision], bool] | None = None) -> Iterator[_Log]:
    """Inside the block every decision of a trace about sizes is logged.

    Decisions of operators are kept only where torch made a guard of them. ``ends`` says of which
    decision the trace is no use: it is ended there.
    """
    log = _Log(ends)
    evaluate = ShapeEnv.evaluate_sym_node

    def evaluate_and_log(self: ShapeEnv, node: SymNode, *args: Any, **kwargs: Any) -> Any:
        frame = _asking_frame() if _DECIDERS else None
        for decides in reversed(_DECIDERS):
            taken = decides(node, frame)
            if taken is not None:
                return sympy.sympify(taken)
        inner = inner_environment()
        if inner is self:  # a guard of the inner graph asks the same of the sizes of the trace
            return evaluate(self, node, *args, **kwargs)
        known = len(self.guards)
        expression = node.expr
        answer = evaluate(self, node, *args, **kwargs)
        guarded = len(self.guards) > known
        decision = _decision(self, node, expression, answer, guarded, inner is not None)
        if decision is not None:
            log.add(decision)
        return answer

    with contextlib.ExitStack() as stack:
        stack.enter_context(swapped(ShapeEnv, "evaluate_sym_node", evaluate_and_log))
        for name in _COMPARISONS:
            compare = _with_sides(name, getattr(SymNode, name))
            stack.enter_context(swapped(SymNode, name, compare))
        if hasattr(export_trace, _NUMBERING):
            stack.enter_context(swapped(export_trace, _NUMBERING, contextlib.nullcontext))
        yield log


def line_that_decides() -> str:
    """The line of the model that has asked for the decision which is being taken; empty where the
    trace asks by itself.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        kind = owner_of(file)
        if kind is Owner.MODEL and not is_of_python(file):
            return line_of(frame)
        if kind is Owner.OWN and name not in _INSIDE:
            return ""
        frame = frame.f_back
    return ""


@contextlib.contextmanager
def taken_by(decides: Callable[[SymNode, FrameType | None], bool | None]) -> Iterator[None]:
    """Inside the block a decision has the answer that ``decides`` gives, and is not logged; None leaves it
    to torch. ``decides`` is given the node, and the frame that asks whether the value is true.
    """
    _DECIDERS.append(decides)
    try:
        yield
    finally:
        _DECIDERS.pop()


def _asking_frame() -> FrameType | None:
    """The frame that asks a symbolic value whether it is true."""
    frame: FrameType | None = sys._getframe(2)
    while (
        frame is not None
        and frame.f_code.co_name in _ASKING
        and frame.f_code.co_filename.startswith(TORCH)
    ):
        frame = frame.f_back
    return frame


def _with_sides(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """The comparison, whose result remembers its sides where sympy simplified it to True or
    False.
    """

    def compare(self: SymNode, other: Any) -> Any:
        result = original(self, other)
        expression = getattr(result, "_expr", None)
        if expression is sympy.true or expression is sympy.false:
            sides = (
                name,
                self.expr,
                other.expr if isinstance(other, SymNode) else sympy.sympify(other),
            )
            with contextlib.suppress(AttributeError):
                setattr(result, _SIDES, sides)
        return result

    return compare


def _decision(
    environment: ShapeEnv,
    node: SymNode,
    expression: Any,
    answer: Any,
    guarded: bool,
    is_inside: bool,
) -> Decision | None:
    """The decision about a node; None for an operator that made no guard, and for what does not
    hang on inputs. ``is_inside`` while a branch of ``cond``, or a step of ``map``, is traced.
    """
    sides = getattr(node, _SIDES, None)
    relation: Any = None
    if sides is not None:
        relation, compared = _COMPARISONS[sides[0]], tuple(sides[1:])
    else:
        compared = (expression,)
    symbols = {symbol for side in compared for symbol in side.free_symbols}
    if not symbols:
        return None
    by_guard = is_inside and _is_guard_check()
    by_model, frame = _who_decides(guarded or by_guard)
    by_model = by_model or by_guard
    if not by_model and not guarded:
        return None
    sources = sources_of(environment, symbols)
    return Decision(
        relation, compared, answer, sources, by_model, guarded, line_of(frame) if frame else ""
    )


def sources_of(environment: ShapeEnv, symbols: Iterable[Any]) -> dict[Any, str]:
    """The source of each symbol of torch, as torch writes it: ``L['x'].size()[1]``."""
    known = environment.var_to_sources if hasattr(environment, "var_to_sources") else {}
    return {symbol: str(known[symbol][0].name) for symbol in symbols if known.get(symbol)}


def _is_guard_check() -> bool:
    """True where the guards of an inner graph are asked. Which Python of the model made them is not
    known: an assumption that no size is 1 may have answered it.
    """
    frame: FrameType | None = sys._getframe(3)
    while frame is not None and not frame.f_code.co_filename.endswith(_GUARDS):
        frame = frame.f_back
    return frame is not None


def _who_decides(guarded: bool) -> tuple[bool, FrameType | None]:
    """True when the Python of the model decides, False for an operator of torch; and the frame of
    the model.

    The frames are read from the innermost one on. The Python of ``torch/nn`` and
    ``torch/functional.py`` is code of the model. C++ asks with the name of its file. The frame of
    the model is looked for where the decision is kept.
    """
    frame: FrameType | None = sys._getframe(3)
    by_model = True
    while frame is not None:
        code = frame.f_code
        kind = owner_of(code.co_filename)
        if kind is Owner.OPERATOR or (
            kind is Owner.TORCH and code.co_name.startswith("guard_") and frame.f_locals.get("file")
        ):
            by_model = False
            if not guarded:
                return False, None
        elif kind is Owner.OWN:
            if code.co_name not in _HANDING_ON:
                return by_model, None
        elif kind is Owner.MODEL and not is_of_python(code.co_filename):
            return by_model, frame
        frame = frame.f_back
    return by_model, None
