"""The text of a size or of another symbolic number, which a model may decide by:
``getattr(self, f"head_{x.shape[1]}")``.

While it traces, torch writes the name of the symbol: ``"head_s77"``, of which each comparison, each
length and each lookup says something that is true of no call. Inside the block the code of a model
gets the text of the number itself, which Python asks for as for any other number: a size becomes a
constant of the graph, and a number that hangs on values is refused. Only text that a person reads
leaves the number symbolic: that of ``print``, of a logger and of ``warnings`` where nothing of the
model can read it again (:mod:`onlooker.repairs.numbers.for_people`), and the message of a function that only
checks (:mod:`onlooker.model_source.source_messages`).

Upstream: https://github.com/pytorch/pytorch/blob/v2.13.0/torch/__init__.py, ``SymInt.__repr__``. It
may go when torch guards there; ``a name made of a size`` and its neighbours in
``tests/scenarios/test_planted_branches.py`` then pass without it.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import logging
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FrameType
from typing import Any

import torch

from ...model_source.frames import looked_up
from ...model_source.lines import is_of_library, is_of_python, line_of
from ...model_source.source_messages import is_message
from ...model_source.source_tests import tree_of, tree_of_code
from ...patches.swap import swapped
from ..repair import Repair
from .for_people import Outlets

__all__ = ["NUMBER_TEXTS", "texts_are_of_numbers"]

logger = logging.getLogger(__name__)

#: each class of symbolic numbers, and what makes a plain number of one
_NUMBERS: dict[type, Callable[[Any], Any]] = {
    torch.SymInt: lambda size: size.node.guard_int("", 0),
    torch.SymFloat: lambda number: number.node.guard_float("", 0),
    torch.SymBool: lambda answer: answer.node.guard_bool("", 0),
}
#: functions and methods that make texts, and expressions that put them together
_MAKERS = frozenset({"str", "repr", "format", "ascii", "map"})
_METHODS = frozenset({"format", "join"})
_OF_TEXTS = (ast.JoinedStr, ast.FormattedValue, ast.BinOp, ast.Tuple, ast.List, ast.Starred)
_BLOCKS = (ast.stmt, ast.excepthandler, ast.match_case)


@contextlib.contextmanager
def texts_are_of_numbers() -> Iterator[None]:
    """Inside the block the text that a model makes of a symbolic number is that of the number."""
    outlets = Outlets()
    with contextlib.ExitStack() as stack:
        for kind, number_of in _NUMBERS.items():
            stack.enter_context(swapped(kind, "__repr__", _repr(kind, number_of, outlets)))
            stack.enter_context(swapped(kind, "__format__", _format(number_of, outlets)))
        yield


def _repr(kind: type, number_of: Callable[[Any], Any], outlets: Outlets) -> Callable[[Any], str]:
    of_torch: Callable[[Any], str] = vars(kind)["__repr__"]

    def text(number: Any) -> str:
        return repr(number_of(number)) if _decides_by_text(outlets) else of_torch(number)

    return text


def _format(number_of: Callable[[Any], Any], outlets: Outlets) -> Callable[[Any, str], str]:
    def text(number: Any, how: str) -> str:
        return format(number_of(number), how) if _decides_by_text(outlets) else repr(number)

    return text


def _decides_by_text(outlets: Outlets) -> bool:
    """True where the code of a model asks our caller for a text, and not only for a person."""
    caller = sys._getframe(2)
    if is_of_library(caller.f_code.co_filename):
        return False
    asked = list(_asked_loggers(caller))
    if asked:  # a logger makes its text late, in a filter, a handler or a formatter
        return not all(map(outlets.shows_logs, asked))
    frames = _frames_of_model(caller)
    asking = [frame for frame in frames if not is_of_python(frame.f_code.co_filename)]
    if not asking:
        return False
    statements = _statements_at(asking[0].f_code, asking[0].f_lineno)
    if statements and all(_is_for_people(one, asking[0], outlets) for one in statements):
        return False
    logger.debug("the model may decide by the text of a number: %s", line_of(asking[0]))
    return True


def _asked_loggers(frame: FrameType | None) -> Iterator[logging.Logger]:
    """The loggers that are writing a record."""
    while frame is not None:
        if frame.f_code.co_filename == logging.__file__:
            owner = frame.f_locals.get("self")
            if isinstance(owner, logging.Logger):
                yield owner
        frame = frame.f_back


def _frames_of_model(frame: FrameType | None) -> Iterator[FrameType]:
    """The frames from the innermost to the one that torch, or we, called."""
    while frame is not None and not is_of_library(frame.f_code.co_filename):
        yield frame
        frame = frame.f_back


@functools.lru_cache(maxsize=4096)
def _statements_at(code: CodeType, line: int) -> tuple[ast.stmt, ...]:
    """The statements that have an expression at a line; those inside of their blocks left out. There
    are none where the file has changed since the code was imported.
    """
    tree = tree_of_code(code)
    if tree is None:
        return ()
    return tuple(
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt)
        and any(
            inner.lineno <= line <= (inner.end_lineno or inner.lineno)
            for child in ast.iter_child_nodes(node)
            if not isinstance(child, _BLOCKS)
            for inner in ast.walk(child)
            if isinstance(inner, ast.expr)
        )
    )


def _is_for_people(statement: ast.stmt, frame: FrameType, outlets: Outlets) -> bool:
    """True for a statement that only calls ``print``, a logger or ``warnings``, or that gives a text
    to a function as the message of an error.
    """
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return False
    call = statement.value
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    called = _value_of(call.func, frame)
    if called is None or not all(map(_is_only_text, arguments)):
        return False
    if called is builtins.print:
        files = [keyword.value for keyword in call.keywords if keyword.arg in ("file", None)]
        return all(_is_shown(file, frame, outlets) for file in files) and outlets.shows_prints()
    owner = _value_of(call.func.value, frame) if isinstance(call.func, ast.Attribute) else None
    if called is warnings.warn or owner is warnings:
        return outlets.shows_warnings()
    if owner is logging:
        return outlets.shows_logs(logging.getLogger())
    if isinstance(owner, (logging.Logger, logging.LoggerAdapter)):
        return outlets.shows_logs(owner)
    asked = [argument for argument in arguments if any(map(_makes_text, ast.walk(argument)))]
    if not asked or _is_caught(frame.f_code.co_filename, frame.f_lineno):
        return False
    return all(is_message(called, call, argument) for argument in asked)


def _is_shown(file: ast.expr, frame: FrameType, outlets: Outlets) -> bool:
    """True for the ``file=`` of a ``print`` that is a standard stream."""
    is_name = isinstance(file, (ast.Name, ast.Attribute))
    return is_name and outlets.shows_prints(_value_of(file, frame))


@functools.lru_cache(maxsize=4096)
def _is_caught(file: str, line: int) -> bool:
    """True where a ``try`` around a line may catch the error that the line raises."""
    tree = tree_of(file)
    return tree is None or any(
        isinstance(node, ast.Try) and node.lineno <= line <= (node.end_lineno or node.lineno)
        for node in ast.walk(tree)
    )


def _is_only_text(expression: ast.AST) -> bool:
    """True where each text that is made in an expression only becomes a part of a longer one."""
    if isinstance(expression, (ast.Name, ast.Constant)):
        return True
    if isinstance(expression, ast.Call) and _makes_text(expression.func):
        keywords = [keyword.value for keyword in expression.keywords]
        parts: Iterable[ast.AST] = (*expression.args, *keywords)
        if isinstance(expression.func, ast.Attribute):
            parts = (expression.func.value, *parts)
    elif isinstance(expression, _OF_TEXTS):
        parts = ast.iter_child_nodes(expression)
    else:
        return not any(map(_makes_text, ast.walk(expression)))
    return all(map(_is_only_text, parts))


def _makes_text(node: ast.AST) -> bool:
    """True for an expression that is a text of others, and for a function that makes one."""
    if isinstance(node, ast.Name):
        return node.id in _MAKERS
    if isinstance(node, ast.Attribute):
        return node.attr in _METHODS
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return isinstance(node.left, (ast.Constant, ast.JoinedStr))
    return isinstance(node, ast.JoinedStr)


def _value_of(expression: ast.expr, frame: FrameType) -> Any:
    """The value of a name, or of attributes of a name, in a frame; None where there is none."""
    if isinstance(expression, ast.Attribute):
        return getattr(_value_of(expression.value, frame), expression.attr, None)
    if not isinstance(expression, ast.Name):
        return None
    with contextlib.suppress(LookupError):
        return looked_up(expression.id, frame)
    return None


NUMBER_TEXTS = Repair(
    "texts of sizes",
    '``getattr(self, f"head_{x.shape[1]}")`` reads the name of a symbol in a trace, and'
    " every comparison with it is true of no call. The model gets the text of the number,"
    " which is a decision of the trace.",
    until="tests/repairs/test_number_texts.py::test_a_text_that_a_model_decides_by_is_that_of_the_number",
    link="https://github.com/pytorch/pytorch/blob/v2.13.0/torch/__init__.py",
    always=True,
)
