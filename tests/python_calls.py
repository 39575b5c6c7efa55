"""Counts what Python does in a run, where seconds would depend on the machine."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["python_calls"]


def python_calls(run: Callable[[], object]) -> int:
    """The number of functions of Python that a run calls."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    gc.collect()
    gc.disable()  # a collection calls functions for what others left behind
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count
