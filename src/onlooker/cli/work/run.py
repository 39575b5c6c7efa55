"""``onlooker run``: becomes the program, whose processes are watched."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

from ...capture.settings import Settings
from ...core.errors import UsageError
from ...core.support.packages import require_packages
from ...disk.urls import check_url, is_url
from ..command import Answer

__all__ = ["check_command", "command_of", "run"]

#: options of Python that take the next argument as theirs
_WITH_VALUE = frozenset("WX")
#: options of Python after which nothing is an option any more
_LAST = frozenset("cm")
#: options with which Python reads neither PYTHONPATH nor sitecustomize
_ISOLATING = {"I": "PYTHONPATH", "E": "PYTHONPATH", "S": "sitecustomize"}


def run(options: argparse.Namespace, stderr: TextIO) -> Answer:
    """Replaces this process by the program: nothing of onlooker stands between it and the
    shell.

    :raises UsageError: ``bad-command-line``, ``isolated-python``, ``no-such-program``
    :raises SavedFileError: ``url-not-reached``
    :raises MissingPackageError: ``missing-package``
    """
    command = command_of(options.module, options.program)
    check_command(command)
    if is_url(options.out):
        _check_out(options)
    if options.metrics:
        require_packages(
            "opentelemetry.metrics", purpose="onlooker run --metrics", extra="opentelemetry"
        )
    values = "first" if options.keep_values else getattr(options, "former_values", "none")
    settings = Settings(
        options.out if is_url(options.out) else os.path.abspath(options.out),
        tuple(options.watch),
        values,
        (options.at_exit,) if options.at_exit else (),
        metrics=options.metrics,
    )
    environment = settings.environment(os.environ)
    _become(command, environment)
    raise AssertionError("unreachable")


def _check_out(options: argparse.Namespace) -> None:
    """Passes for a URL that can be reached, and for files that can be copied there.

    :raises UsageError: ``bad-command-line``
    :raises SavedFileError: ``url-not-reached``
    """
    if options.at_exit:
        raise UsageError(
            f"Argument --at-exit writes programs into a folder, and {options.out} is a URL.",
            slug="bad-command-line",
            hint="Record there, and export from it: onlooker combine, then onlooker export.",
        )
    check_url(options.out)


def command_of(module: str | None, program: Sequence[str]) -> list[str]:
    """The command of a script, a module, or one that was given after ``--``.

    >>> command_of(None, ["--", "torchrun", "train.py"])
    ['torchrun', 'train.py']

    :raises UsageError: ``bad-command-line``
    """
    if module is not None:
        return [sys.executable, "-m", module, *program]
    if program and program[0] == "--":
        program = program[1:]
        if program:
            return list(program)
    elif program:
        if not Path(program[0]).exists():
            raise UsageError(
                f"There is no file {program[0]}.",
                slug="no-such-program",
                hint="Another command than a Python script is given as `-- COMMAND ...`.",
            )
        return [sys.executable, *program]
    raise UsageError(
        "There is nothing to run.",
        slug="bad-command-line",
        hint="Write onlooker run script.py, onlooker run -m module, or onlooker run -- command.",
    )


def check_command(command: Sequence[str]) -> None:
    """Passes for a command that can be watched.

    :raises UsageError: ``isolated-python`` for a Python that ignores PYTHONPATH or sitecustomize,
        ``no-such-program``
    """
    found = shutil.which(command[0])
    if found is None:
        raise UsageError(
            f"There is no command {command[0]}.",
            slug="no-such-program",
            hint="Give its path, or put its folder on the PATH.",
        )
    first = [command[0], *command[1:]]
    if not _is_python(command[0]):
        first = _shebang(Path(found))
    option = _isolating(first)
    if option is not None:
        raise UsageError(
            f"Python is run with -{option}, and then reads no {_ISOLATING[option]}: onlooker starts"
            " in a process by a sitecustomize on the PYTHONPATH, and would see nothing.",
            slug="isolated-python",
            hint=f"Run it without -{option}.",
        )


def _is_python(command: str) -> bool:
    return Path(command).name.startswith(("python", "pypy"))


def _shebang(file: Path) -> list[str]:
    """The command that a script names in its first line; empty for anything else."""
    try:
        with file.open("rb") as content:
            line = content.readline(400)
    except OSError:
        return []
    if not line.startswith(b"#!"):
        return []
    words = line[2:].decode("utf-8", "replace").split()
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if word != "-S"]
    return words if words and _is_python(words[0]) else []


def _isolating(command: Sequence[str]) -> str | None:
    """The option that keeps a Python from being watched, None where there is none.

    >>> _isolating(["python", "-uI", "app.py"]), _isolating(["python", "app.py", "-I"])
    ('I', None)
    """
    words = iter(command[1:])
    for word in words:
        if not word.startswith("-") or word in ("-", "--"):
            return None
        if word.startswith("--"):
            continue
        for place, letter in enumerate(word[1:], 1):
            if letter in _ISOLATING:
                return letter
            if letter in _LAST:
                return None
            if letter in _WITH_VALUE:
                if place == len(word) - 1:
                    next(words, None)
                break
    return None


def _become(command: Sequence[str], environment: Mapping[str, str]) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    if os.name == "posix":
        os.execvpe(command[0], list(command), dict(environment))
    done = subprocess.run(list(command), env=dict(environment), check=False)  # no exec on Windows
    sys.exit(done.returncode)
