"""Counts what Python does in a run, where seconds would depend on the machine."""

from __future__ import annotations

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

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count
