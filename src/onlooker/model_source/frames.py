"""Whose code a frame runs: the model's, torch's, an operator's of torch, or ours."""

from __future__ import annotations

import builtins
import ctypes
import dis
import enum
import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

import torch
from torch.overrides import handle_torch_function

from .lines import is_of_python

__all__ = [
    "TORCH",
    "Owner",
    "asked_of_model",
    "at_lines",
    "attribute_at_rest",
    "begins_loop",
    "codes_in",
    "frame_of_model",
    "is_code_of_model",
    "is_own_code",
    "is_run_by_model",
    "looked_up",
    "owner_of",
    "reading_frame",
    "set_local",
]

#: the folder of torch, with the separator at its end
TORCH = os.path.dirname(torch.__file__) + os.sep
_ROOT = Path(__file__).parents[1]
_OWN = str(_ROOT) + os.sep
#: what stands in a trace for functions of Python and torch: the line is the one that calls them
_STAND_INS = str(_ROOT / "repairs") + os.sep
_MISSING = object()
#: files of torch that implement operators: an operator decides again when the program runs
_OPERATORS = (
    "_refs",
    "_prims",
    "_meta_registrations",
    "_decomp",
    "_subclasses",
    "_ops.py",
    "_library",
    "_higher_order_ops",
)


class Owner(enum.Enum):
    """Whose code a file has."""

    OPERATOR = enum.auto()
    TORCH = enum.auto()
    OWN = enum.auto()
    MADE = enum.auto()
    MODEL = enum.auto()


@functools.lru_cache(maxsize=4096)
def owner_of(file: str) -> Owner:
    """Whose code a file has; what was made from text at run time has no file."""
    if file.startswith(TORCH):
        return Owner.OPERATOR if file[len(TORCH) :].startswith(_OPERATORS) else Owner.TORCH
    if file.startswith(_STAND_INS):
        return Owner.MADE
    if file.startswith(_OWN):
        return Owner.OWN
    return Owner.MADE if file.startswith("<") else Owner.MODEL


def is_code_of_model(file: str) -> bool:
    """True for a file that is neither torch's nor ours, and has a name."""
    return owner_of(file) is Owner.MODEL


def is_own_code(file: str) -> bool:
    """True for a file of ours."""
    return file.startswith(_OWN)


def is_run_by_model(frame: FrameType | None) -> bool:
    """True where the code around ours and torch's is that of the model, and was not made from text."""
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith("<") or is_code_of_model(file):
            return not file.startswith("<")
        frame = frame.f_back
    return False


def codes_in(code: CodeType) -> Iterator[CodeType]:
    """A code, and those of all functions and classes inside of it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes_in(constant)


def looked_up(name: str, frame: FrameType) -> Any:
    """Returns the value of a name in a running frame.

    :raises LookupError: for a name that is not known there
    """
    for names in (frame.f_locals, frame.f_globals, vars(builtins)):
        if name in names:
            return names[name]
    raise LookupError(name)


def attribute_at_rest(owner: Any, name: str) -> Any:
    """Returns an attribute that is kept as it is; no code of the model runs.

    :raises LookupError: for any other one: to read a property may do anything
    """
    held = inspect.getattr_static(owner, name, _MISSING)
    is_computed = hasattr(held, "__get__") and not isinstance(owner, ModuleType)
    if held is _MISSING or is_computed:
        raise LookupError(name)
    return held


def frame_of_model() -> FrameType | None:
    """The innermost frame that runs code of a model; None where there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_code_of_model(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def asked_of_model(question: Callable[[CodeType, int], bool]) -> bool:
    """The answer of a question about an instruction, for the one at which the innermost frame of a model is; False
    where there is no such frame.
    """
    frame = frame_of_model()
    return frame is not None and question(frame.f_code, frame.f_lasti)


def reading_frame(depth: int, func: Any = None) -> FrameType | None:
    """The innermost frame from a depth on that is the model's; None where code of torch asks, and
    where our own code calls ``func`` by itself rather than handing on the call of a model. A function
    of torch that is Python, as ``Tensor.is_shared``, hands itself on: such frames are passed over.
    """
    frame: FrameType | None = sys._getframe(depth)
    handing_on = (getattr(func, "__code__", None), handle_torch_function.__code__)
    while frame is not None:
        if frame.f_code in handing_on:
            frame = frame.f_back
            continue
        file = frame.f_code.co_filename
        if is_code_of_model(file) and not is_of_python(file):
            return frame
        if not is_own_code(file) and not is_of_python(file):
            return None
        if func is not None and frame.f_locals.get("func", func) != func:
            return None
        frame = frame.f_back
    return None


def set_local(frame: FrameType, name: str, value: Any) -> None:
    """Gives a local name of a running frame another value, as a debugger does.

    From Python 3.13 on ``f_locals`` writes to the frame itself (PEP 667); before, the interpreter has
    a function that does so.
    """
    frame.f_locals[name] = value
    if sys.version_info < (3, 13):
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))


def begins_loop(frame: FrameType) -> bool:
    """True for a frame of a model that asks for an iterator itself, as a loop and a comprehension do."""
    is_of_model = is_code_of_model(frame.f_code.co_filename)
    return is_of_model and dis.opname[frame.f_code.co_code[frame.f_lasti]] == "GET_ITER"


#: what is called before each line of a running frame
_ACTS: dict[FrameType, list[Callable[[], bool]]] = {}


def at_lines(frame: FrameType, act: Callable[[], bool]) -> Callable[[], None]:
    """Calls ``act`` before each line of a running frame until it is True, or the frame ends. Returns what ends
    that earlier.
    """

    def end() -> None:
        acts = _ACTS.get(frame, [])
        if act in acts:
            acts.remove(act)
        if not acts and _ACTS.pop(frame, None) is not None:
            frame.f_trace = of_frame
            sys.settrace(of_thread)

    if frame in _ACTS:
        _ACTS[frame].append(act)
        return end
    of_thread, of_frame = sys.gettrace(), frame.f_trace
    _ACTS[frame] = [act]

    def told(_: FrameType, event: str, __: Any) -> Any:
        acts = _ACTS.get(frame, [])
        if event == "line":
            acts[:] = [one for one in acts if not one()]
        if event == "return" or not acts:
            acts.clear()
            end()
        return told if acts else of_frame

    frame.f_trace = told
    sys.settrace(lambda *_: None)
    return end
