"""Parses the command line, runs the command, and turns an error into one message."""

from __future__ import annotations

import argparse
import inspect
import io
import json
import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from typing import Any, NoReturn, TextIO

from ..core.errors import OnlookerError, UsageError
from ..core.messages import nearest
from ..core.versions import __version__
from ..model_source.user_function import FunctionRaisedError
from .command import Answer, Command, ExitCode, to_type
from .commands import COMMANDS
from .options import JSON, QUIET, WARNINGS

__all__ = ["COMMANDS", "complete", "main", "parsed"]

#: options about the answer, which the next command does not repeat
_OF_ANSWERS = (*JSON.names, *QUIET.names)
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
            options = parsed(argv)
        if options.command is None:
            stderr.write(_parser()[0].format_help())
            return ExitCode.ERROR
        for warning in getattr(options, WARNINGS, ()):
            stderr.write(f"onlooker: {warning}\n")
        command: Command = options.command
        command.check(options)
        open_still = Unclosable(stderr)
        with (
            redirect_stdout(open_still),
            redirect_stderr(open_still),
        ):  # what others print is no answer
            answer = command.run(options, io.StringIO() if options.quiet else stderr)
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
    if stderr.isatty() and error.slug != "bad-command-line":
        stderr.write(f"more about it: {to_type('explain', error.slug)}\n")


def _write(answer: Answer, options: argparse.Namespace, stdout: TextIO, stderr: TextIO) -> None:
    if options.json:
        _write_json({"command": options.command.name, **answer.data(), "next": answer.next}, stdout)
        return
    from rich.console import Console

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
    here. A word that is nearly one of those that are known is followed by the known one.
    """

    def error(self, message: str) -> NoReturn:
        self.refuse(message)

    def refuse(self, message: str, meant: str = "") -> NoReturn:
        """Raises the error for a word that is not known; ``meant`` is the nearest known one.

        :raises UsageError: ``bad-command-line``
        """
        sentence = message[:1].upper() + message[1:]
        guess = f"Did you mean {meant}? " if meant else ""
        raise UsageError(
            f"{sentence}.", slug="bad-command-line", hint=f"{guess}See: {self.prog} --help."
        )

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """As in argparse, with the nearest choice."""
        choices = None if action.choices is None else list(map(str, action.choices))
        if choices is None or value in choices:
            return
        name = action.metavar or "/".join(action.option_strings) or action.dest
        if action.option_strings:
            name = "/".join(action.option_strings)
        self.refuse(
            f"argument {name}: invalid choice: {value!r} (choose from {', '.join(choices)})",
            nearest(value, choices),
        )

    def refuse_unknown(self, words: Iterable[str]) -> None:
        """Raises the error for the first option that the parser does not have, if there is one.

        :raises UsageError: ``bad-command-line``
        """
        known = self._option_string_actions
        for word in words:
            name = word.partition("=")[0]
            is_option = name.startswith("--") and len(name) > len("--")
            if is_option and not any(one.startswith(name) for one in known):
                shown = [one for one, action in known.items() if action.help != argparse.SUPPRESS]
                self.refuse(f"unrecognized arguments: {word}", nearest(name, shown))


def parsed(argv: Sequence[str]) -> argparse.Namespace:
    """The options that are typed.

    :raises UsageError: ``bad-command-line``
    """
    parser, of_commands = _parser()
    chosen = next((of_commands[word] for word in argv if word in of_commands), parser)
    try:
        options, unknown = parser.parse_known_args(argv)
    except UsageError:
        chosen.refuse_unknown(argv)  # what follows an unknown option was taken for something else
        raise
    if unknown:
        chosen.refuse_unknown(unknown)
        chosen.refuse(f"unrecognized arguments: {' '.join(unknown)}")
    options.argv = [word for word in argv if word not in _OF_ANSWERS]
    return options


def _parser() -> tuple[_Parser, dict[str, _Parser]]:
    """The parser, and those of the commands by their names."""
    parser = _Parser(
        prog="onlooker",
        description=(
            "Watches a PyTorch model while it is used, and gives back an exported program "
            "with the right dynamic shapes, proven on calls it never saw."
        ),
        epilog=(
            "exit codes: 0 done and verified, 1 an error, 2 not verified (or calls outside), 130"
            " interrupted. What the word at the end of an error means: onlooker explain WORD"
        ),
        formatter_class=_formatter(raw=False),
    )
    parser.add_argument("--version", action="version", version=f"onlooker {__version__}")
    parser.set_defaults(command=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    children: dict[str, _Parser] = {}
    for command in COMMANDS:
        story = inspect.getdoc(type(command)) or ""
        child = commands.add_parser(
            command.name,
            help=" ".join(story.partition("\n\n")[0].split()),
            description=story,
            epilog=f"example:\n  onlooker {command.example}",
            formatter_class=_formatter(),
        )
        child.set_defaults(command=command)
        command.add_arguments(child)
        QUIET.add(child)
        JSON.add(child)
        children[command.name] = child
    return parser, children


def _formatter(*, raw: bool = True) -> type[argparse.HelpFormatter]:
    """The formatter of rich-argparse where it is installed, for a terminal; else that of
    argparse, which has colours from Python 3.14 on. A ``raw`` one leaves lines as they are.
    """
    if sys.stdout.isatty() and "NO_COLOR" not in os.environ:
        try:
            import rich_argparse
        except ImportError:
            pass
        else:
            name = "RawDescriptionRichHelpFormatter" if raw else "RichHelpFormatter"
            found: type[argparse.HelpFormatter] = getattr(rich_argparse, name)
            return found
    return argparse.RawDescriptionHelpFormatter if raw else argparse.HelpFormatter


def complete() -> None:
    """Answers a shell that asks how a word goes on, where argcomplete is installed; see
    ``docs/command_line.md``.
    """
    try:
        import argcomplete
    except ImportError:
        return
    argcomplete.autocomplete(_parser()[0])
