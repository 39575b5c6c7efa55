"""Parses the command line, runs the command, and turns an error into one message."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from importlib.metadata import PackageNotFoundError, version
from typing import NoReturn, TextIO

from ..core.errors import OnlookerError, UsageError
from .command import Command, ExitCode
from .demo import Demo

__all__ = ["COMMANDS", "main"]

#: every command, in the order of the help
COMMANDS: tuple[Command, ...] = (Demo(),)


def main(argv: Sequence[str], stdout: TextIO, stderr: TextIO) -> int:
    """Runs ``onlooker`` with the arguments ``argv``; returns the exit code.

    0 done and verified, 1 an error (one message on ``stderr``), 2 not verified. An error that onlooker
    does not raise on purpose is a bug, and passes with its traceback.
    """
    try:
        with redirect_stdout(stdout), redirect_stderr(stderr):  # argparse prints its help itself
            options = _parser().parse_args(argv)
        if options.command is None:
            stderr.write(_parser().format_help())
            return ExitCode.ERROR
        command: Command = options.command
        return command.run(options, stdout, stderr)
    except OnlookerError as error:
        stderr.write(f"onlooker: {error}\n")
        return ExitCode.ERROR
    except SystemExit as done:  # --help and --version
        return int(done.code or 0)


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are ours: argparse would exit with 2, which means "not verified" here."""

    def error(self, message: str) -> NoReturn:
        sentence = message[:1].upper() + message[1:]
        raise UsageError(f"{sentence}.", slug="bad-command-line", hint=f"See: {self.prog} --help.")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="onlooker",
        description="Watches a PyTorch model while it is used, and gives back an exported program "
        "with the right dynamic shapes, proven on calls it never saw.",
        epilog="exit codes: 0 done and verified, 1 an error, 2 not verified",
    )
    parser.add_argument("--version", action="version", version=f"onlooker {_version()}")
    parser.set_defaults(command=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for command in COMMANDS:
        story = inspect.getdoc(type(command)) or ""
        child = commands.add_parser(command.name, help=story.splitlines()[0], description=story)
        child.set_defaults(command=command)
        command.add_arguments(child)
    return parser


def _version() -> str:
    try:
        return version("onlooker")
    except PackageNotFoundError:  # run from a source tree which is not installed
        return "(not installed)"
