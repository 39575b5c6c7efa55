"""What a command is."""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
from enum import IntEnum
from pathlib import Path
from typing import Protocol, TextIO

__all__ = ["Command", "ExitCode", "to_type"]


class ExitCode(IntEnum):
    """How a command ended."""

    VERIFIED = 0
    ERROR = 1
    NOT_VERIFIED = 2


class Command(Protocol):
    """One command: a name, its options, and what it does. The docstring of the class is its help."""

    name: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options."""

    def run(self, options: argparse.Namespace, stdout: TextIO, stderr: TextIO) -> ExitCode:
        """Does the work; results go to ``stdout``, progress to ``stderr``.

        :raises OnlookerError: which ``main`` prints as one message
        """
        ...


def to_type(*arguments: str) -> str:
    """``onlooker`` with these arguments, as it can be typed here: an environment need not be on the PATH."""
    script = Path(sys.executable).with_name("onlooker")
    if shutil.which("onlooker"):
        program = ["onlooker"]
    elif script.exists():
        here = Path.cwd()
        program = [str(script.relative_to(here) if script.is_relative_to(here) else script)]
    else:
        program = ["python", "-m", "onlooker"]
    return shlex.join([*program, *arguments])
