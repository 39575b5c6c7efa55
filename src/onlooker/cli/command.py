"""The base of all commands, and what they answer."""

from __future__ import annotations

import argparse
import importlib
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TextIO

from .options import Group, Option

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Answer", "Command", "ExitCode", "as_options", "printing", "to_type"]


class ExitCode(IntEnum):
    """The exit codes of all commands."""

    VERIFIED = 0
    ERROR = 1
    NOT_VERIFIED = 2

    @classmethod
    def of(cls, holds: bool) -> ExitCode:
        """The code of a command that proves, or checks."""
        return cls.VERIFIED if holds else cls.NOT_VERIFIED


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a command: ``show`` prints it, ``data`` gives it for JSON, ``next`` is the
    command to type then.

    With ``pure``, what is printed is a file of its own, and ``next`` goes to the standard error.
    """

    code: ExitCode
    show: Callable[[Console], None]
    data: Callable[[], dict[str, object]]
    next: str
    pure: bool = False


def printing(lines: Iterable[str]) -> Callable[[Console], None]:
    """A function that prints these lines as they are."""
    return lambda console: console.file.writelines(f"{line}\n" for line in lines)


class Command:
    """One command: a name, an example and its options. The docstring of the class is its help.

    The work is done by the module of the same name in ``cli/work``, which is imported when the command
    runs: it needs torch, whose import takes seconds. The example is what is typed after ``onlooker``;
    ``app.py:build`` stands for a function of the user.
    """

    name: ClassVar[str]
    example: ClassVar[str]
    options: ClassVar[tuple[Option | Group, ...]] = ()
    #: values of options that the work reads and this command does not have
    defaults: ClassVar[tuple[tuple[str, Any], ...]] = ()

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options."""
        for each in self.options:
            each.add(parser)
        parser.set_defaults(**dict(self.defaults))

    def check(self, options: argparse.Namespace) -> None:
        """Passes for options with which the work may begin; nothing is imported for it.

        :raises OnlookerError: as the work itself would, only sooner
        """

    def run(self, options: argparse.Namespace, stderr: TextIO) -> Answer:
        """Does the work; progress goes to ``stderr``.

        :raises OnlookerError: which ``main`` prints as one message
        """
        work = importlib.import_module(f"{__package__}.work.{self.name}")
        answer: Answer = work.run(options, stderr)
        return answer


def as_options(values: Mapping[str, float]) -> list[str]:
    """Values as they are typed.

    >>> as_options({"atol": 0.01, "agreement": 0.96})
    ['--atol', '0.01', '--agreement', '0.96']
    """
    return [word for name, value in values.items() for word in (f"--{name}", f"{value:g}")]


def to_type(*arguments: str) -> str:
    """``onlooker`` with these arguments, as it can be typed here: an environment need not be on
    the PATH.
    """
    script = Path(sys.executable).with_name("onlooker")
    if shutil.which("onlooker"):
        program = ["onlooker"]
    elif script.exists():
        here = Path.cwd()
        program = [str(script.relative_to(here) if script.is_relative_to(here) else script)]
    else:
        program = ["python", "-m", "onlooker"]
    return shlex.join([*program, *arguments])
