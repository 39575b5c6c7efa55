"""Functions of jobs: they are looked up by this file, in processes of their own."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from onlooker.core.errors import UsageError

Note = Callable[[dict[str, Any]], None]


def counted(folder: Path, note: Note, number: int, seconds: float = 0.0, log: str = "") -> dict[str, Any]:
    """Writes a file, and a line into a log of all jobs when it has ended."""
    time.sleep(seconds)
    (folder / "result.txt").write_text(str(number**2))
    if log:
        with open(log, "a") as file:
            file.write(f"{number}\n")
    return {"square": number**2, "files": ["result.txt"]}


def refuses(folder: Path, note: Note) -> dict[str, Any]:
    raise UsageError("It cannot be meant.", slug="bad-job", hint="Mean it.")


def raises(folder: Path, note: Note) -> dict[str, Any]:
    raise ZeroDivisionError("in a function of the user")


def dies(folder: Path, note: Note) -> dict[str, Any]:
    note({"stage": "the middle", "half": 1})
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def computes(folder: Path, note: Note) -> dict[str, Any]:
    note({"stage": "a loop"})
    while True:
        pass


def allocates(folder: Path, note: Note) -> dict[str, Any]:
    return {"length": len(bytearray(1 << 40))}


def returns_a_set(folder: Path, note: Note) -> dict[str, Any]:
    return {"value": {1, 2}}


def beats(folder: Path, note: Note, log: str) -> dict[str, Any]:
    """Lives for a minute, and says so."""
    for _ in range(600):
        time.sleep(0.1)
        Path(log).write_text(str(time.time()))
    return {}
