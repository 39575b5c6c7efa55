"""Parses the command line, runs the command, and turns an error into one message."""

from __future__ import annotations

import argparse
import inspect
import io
import json
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from typing import Any, NoReturn, TextIO

from rich.console import Console

from ..core.errors import OnlookerError, UsageError
from ..core.versions import __version__
from .check import Check
from .code import Code
from .combine import Combine
from .command import Answer, Command, ExitCode
from .demo import Demo
from .doctor import Doctor
from .emit import Emit
from .explain import Explain
from .export import Export
from .html import Html
from .report import ReportRun
from .run import Run
from .show import Show
from .user_function import FunctionRaisedError
from .verify import Verify

__all__ = ["COMMANDS", "main"]

#: every command, in the order of the help
COMMANDS: tuple[Command, ...] = (
    Demo(),
    Run(),
    ReportRun(),
    Combine(),
    Html(),
    Export(),
    Show(),
    Explain(),
    Verify(),
    Check(),
    Code(),
    Emit(),
    Doctor(),
)

#: columns of what goes into a file or a pipe
PLAIN_WIDTH = 120


def main(argv: Sequence[str], stdout: TextIO, stderr: TextIO) -> int:
    """Runs ``onlooker`` with the arguments ``argv``; returns the exit code.

    0 done and verified, 1 an error (one message on ``stderr``), 2 not verified. An error that
    onlooker does not raise on purpose is a bug, and passes with its traceback. With ``--json``,
    ``stdout`` has one JSON object and nothing else, also for an error of a command.
    """
    options: argparse.Namespace | None = None
    try:
        with redirect_stdout(stdout), redirect_stderr(stderr):  # argparse prints its help itself
            options = _parser().parse_args(argv)
        if options.command is None:
            stderr.write(_parser().format_help())
            return ExitCode.ERROR
        command: Command = options.command
        open_still = Unclosable(stderr)
        with (
            redirect_stdout(open_still),
            redirect_stderr(open_still),
        ):  # what others print is no answer
            answer = command.run(options, stderr)
        _write(answer, options, stdout, stderr)
        return answer.code
    except OnlookerError as error:
        _complain(error, stderr)
        if options is not None and options.json:
            found = {"slug": error.slug, "message": error.message, "hint": error.hint}
            _write_json({"command": options.command.name, "error": found}, stdout)
        return ExitCode.ERROR
    except SystemExit as done:  # --help and --version
        return int(done.code or 0)


class Unclosable(io.TextIOBase):
    """A stream for the code of the user, which may close what it takes for its own."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Writes the text, also after somebody has closed this."""
        return self.stream.write(text)

    def close(self) -> None:
        """The stream itself stays open."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["stream"], name)

    def flush(self) -> None:
        """Writes what waits."""
        self.stream.flush()

    def isatty(self) -> bool:
        """As the stream says."""
        return self.stream.isatty()

    def fileno(self) -> int:
        """As the stream says."""
        return self.stream.fileno()

    def writable(self) -> bool:
        """True: it is there to be written to."""
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """That of the stream."""
        return self.stream.encoding


def _complain(error: OnlookerError, stderr: TextIO) -> None:
    if isinstance(error, FunctionRaisedError):
        stderr.write(error.traceback)
    stderr.write(f"onlooker: {error}\n")


def _write(answer: Answer, options: argparse.Namespace, stdout: TextIO, stderr: TextIO) -> None:
    if options.json:
        _write_json({"command": options.command.name, **answer.data(), "next": answer.next}, stdout)
        return
    console = Console(
        file=stdout, highlight=False, markup=False, width=None if stdout.isatty() else PLAIN_WIDTH
    )
    answer.show(console)
    last = stderr if answer.pure else stdout
    last.write(f"{'' if answer.pure else chr(10)}next: {answer.next}\n")


def _write_json(document: dict[str, object], stdout: TextIO) -> None:
    stdout.write(json.dumps(document, indent=2, allow_nan=False) + "\n")


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are ours: argparse would exit with 2, which means "not verified"
    here.
    """

    def error(self, message: str) -> NoReturn:
        sentence = message[:1].upper() + message[1:]
        raise UsageError(f"{sentence}.", slug="bad-command-line", hint=f"See: {self.prog} --help.")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="onlooker",
        description=(
            "Watches a PyTorch model while it is used, and gives back an exported program "
            "with the right dynamic shapes, proven on calls it never saw."
        ),
        epilog=(
            "exit codes: 0 done and verified, 1 an error, 2 not verified (or calls outside), 130"
            " interrupted"
        ),
    )
    parser.add_argument("--version", action="version", version=f"onlooker {__version__}")
    parser.set_defaults(command=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for command in COMMANDS:
        story = inspect.getdoc(type(command)) or ""
        child = commands.add_parser(
            command.name,
            help=" ".join(story.partition("\n\n")[0].split()),
            description=story,
            epilog=f"example:\n  onlooker {command.example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        child.set_defaults(command=command)
        command.add_arguments(child)
        child.add_argument(
            "--json", action="store_true", help="print one JSON object, and nothing else"
        )
    return parser
