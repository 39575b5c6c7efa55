"""The frame of the model that asks, below frames of our own and of Python's library."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from .decisions import is_code_of_model, is_own_code
from .lines import is_of_python

__all__ = ["reading_frame"]


def reading_frame(depth: int, func: Any = None) -> FrameType | None:
    """The innermost frame from a depth on that is the model's; None where code of torch asks, and
    where our own code calls ``func`` by itself rather than handing on the call of a model.
    """
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None:
        file = frame.f_code.co_filename
        if is_code_of_model(file) and not is_of_python(file):
            return frame
        if not is_own_code(file) and not is_of_python(file):
            return None
        if func is not None and frame.f_locals.get("func", func) != func:
            return None
        frame = frame.f_back
    return None
