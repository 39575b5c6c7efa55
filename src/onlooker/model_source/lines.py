"""Lines of the model, as they are shown to a user:
``model.py:12 in forward: if x.shape[1] > 24:``.
"""

from __future__ import annotations

import linecache
import os
import re
import sysconfig
from collections.abc import Callable
from pathlib import Path as FilePath
from types import FrameType

import torch

__all__ = [
    "comes_through",
    "is_of_library",
    "is_of_python",
    "line_of",
    "place_of_error",
    "place_of_node",
    "place_of_stack",
    "short_name_of",
]

_LIBRARIES = (os.path.dirname(torch.__file__) + os.sep, str(FilePath(__file__).parents[1]) + os.sep)
_STANDARD = sysconfig.get_path("stdlib") + os.sep
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


def line_of(frame: FrameType) -> str:
    """The line that a frame runs: ``file:number in function: text``."""
    return _line(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def _line(file: str, number: int, function: str) -> str:
    text = linecache.getline(file, number).strip()
    return f"{short_name_of(file)}:{number} in {function}: {text}"


def short_name_of(file: str) -> str:
    """A file as one would name it: from the installed packages, or from the current directory,
    on.
    """
    _, found, rest = file.rpartition(f"site-packages{os.sep}")
    here = os.getcwd() + os.sep
    return rest if found else file.removeprefix(here)


def place_of_error(error: BaseException) -> str:
    """The innermost line of the model that an error came from; empty where there is none."""
    place, trace = "", error.__traceback__
    inside = False
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        inside = inside or name.startswith(_LIBRARIES)
        if inside and _is_of_model(name):
            place = _line(name, trace.tb_lineno, trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    cause = error.__cause__
    return place or (place_of_error(cause) if cause is not None else "")


def _is_of_model(file: str) -> bool:
    """True for a file of the model, or of a library that it uses: not of torch, of Python or of
    ours.
    """
    return not (file.startswith((*_LIBRARIES, "<")) or is_of_python(file))


def is_of_python(file: str) -> bool:
    """True for a file of Python's own library."""
    return file.startswith(_STANDARD) and "-packages" not in file


def is_of_library(file: str) -> bool:
    """True for a file of torch or of ours."""
    return file.startswith(_LIBRARIES)


def comes_through(error: BaseException, runs: Callable[[FrameType], bool]) -> bool:
    """True where code that ``runs`` is true of was running when the error, or its cause, was
    raised.
    """
    trace = error.__traceback__
    while trace is not None:
        if runs(trace.tb_frame):
            return True
        trace = trace.tb_next
    return error.__cause__ is not None and comes_through(error.__cause__, runs)


def place_of_node(node: torch.fx.Node) -> str:
    """The innermost line of the model that called what the node calls; empty where the graph
    does not say.
    """
    return place_of_stack(node.meta.get("stack_trace") or "")


def place_of_stack(text: str) -> str:
    """The innermost line of the model in the text of a stack of calls; empty where it has none."""
    found = _FRAME.findall(text)
    own = [frame for frame in found if _is_of_model(frame[0])]
    return _line(own[-1][0], int(own[-1][1]), own[-1][2]) if own else ""
