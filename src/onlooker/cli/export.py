"""``onlooker export``: from a function of the user to a proven program in a folder."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

import torch
from rich.console import Console

from .._api import InputObserver
from ..core.errors import UsageError
from ..program import Program
from ..programs import Programs
from ..targets.ranges import OBSERVED
from ..targets.targets import TARGETS
from .command import Answer, ExitCode, to_type
from .entries import add_entry, entry_name, texts_by_entry, watch_entries
from .progress import progress
from .saved import add_full, directory_to_write, in_full
from .user_function import HELP, Used, load_function, raised_by_the_user

__all__ = ["Export", "watch"]


class Export:
    """Watches your model in your code, exports it, and proves the program on calls it never saw.

    FUNCTION returns the model and a callable without arguments, which uses the model as it is
    really used. With --entry it may return a pipeline instead: each part that is named gets a
    program, and all programs go into one folder.
    """

    name = "export"
    example = "export app.py:build --out program --recording calls.json"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options."""
        names = tuple(target.name for target in TARGETS)
        parser.add_argument("function", metavar="MODULE:FUNCTION", help=HELP)
        parser.add_argument("--to", choices=names, default="torch", help="default: %(default)s")
        parser.add_argument("--out", type=Path, metavar="DIR", help="save the program there")
        parser.add_argument(
            "--values", action="store_true", help="save the values of the kept calls as well"
        )
        parser.add_argument(
            "--recording", type=Path, metavar="FILE", help="save the specs of all calls there"
        )
        parser.add_argument(
            "--method", default="forward", help="the method to watch; default: %(default)s"
        )
        add_entry(parser)
        parser.add_argument(
            "--keep",
            type=int,
            default=3,
            metavar="N",
            help="calls whose values are kept; default: 3",
        )
        parser.add_argument(
            "--no-probe", action="store_true", help="do not ask the model what calls cannot tell"
        )
        parser.add_argument("--no-verify", action="store_true", help="do not try the program")
        add_full(parser)
        for option, meaning in (("--static", "never change"), ("--dynamic", "change")):
            parser.add_argument(
                option,
                action="append",
                default=[],
                metavar="ARG:DIMS",
                help=f"dimensions that {meaning}: x:0,2",
            )
        parser.add_argument(
            "--range",
            action="append",
            default=[],
            metavar="SYMBOL=LOW:HIGH",
            help="least and greatest size: batch=1:64; observed alone: those of the calls",
        )

    def run(self, options: argparse.Namespace, stderr: TextIO) -> Answer:
        """Watches, exports, verifies and saves."""
        directory_to_write(options.out)
        _check_entries(options)
        out, recording = in_full(options.out), in_full(options.recording)
        names = [entry_name(path) for path in options.entry]
        pins, own_pins = _pins(options, names)
        asked = {"to": options.to, "probe": not options.no_probe, **pins}
        program: Program | Programs
        with progress(stderr) as say:
            say(f"running {options.function}")
            used = load_function(options.function)
            say("watching its use")
            if options.entry:
                observers = watch_entries(used, options.entry, options.keep)
                say("exporting")
                program = observers.export(options=own_pins, **asked)
            else:
                observer = watch(used, options.method, options.keep)
                if recording is not None:
                    observer.recording(options.method).save(recording)
                say("exporting")
                program = observer.export(method_name=options.method, **asked)
            if not options.no_verify:
                say("verifying")
                program.verify()
            if out is not None:
                say(f"writing into {options.out}")
                program.save(out, values=options.values)
        return _answer(program, options)


def _check_entries(options: argparse.Namespace) -> None:
    """Passes where no option is of one method alone, beside entries.

    :raises UsageError: ``bad-command-line``
    """
    alone = [
        option
        for option, given in (
            ("--method", options.method != "forward"),
            ("--recording", options.recording is not None),
        )
        if given
    ]
    if options.entry and alone:
        raise UsageError(
            f"Argument {alone[0]} is for one method, and --entry names its own.",
            slug="bad-command-line",
            hint=(
                "Write the method into the entry, as in vae.decode. The folder of each entry has"
                " its recording.json."
            ),
        )


def _pins(
    options: argparse.Namespace, names: Sequence[str]
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """What is said about axes: of all entries, and of single ones by their names."""
    found: dict[str, dict[str, Any]] = {}
    for pin, texts in (("static", options.static), ("dynamic", options.dynamic)):
        for name, own in texts_by_entry(texts, names).items():
            found.setdefault(name, {})[pin] = dimensions(own, f"--{pin}")
    for name, own in texts_by_entry(options.range, names).items():
        found.setdefault(name, {})["ranges"] = ranges(own)
    return found.pop("", {}), found


def watch(used: Used, method: str, keep: int = 3) -> InputObserver:
    """The observer of one use of a model.

    :raises FunctionRaisedError: ``function-raised`` when the use raises
    """
    observer = InputObserver()
    with (
        observer(used.model, store_n_calls=keep, method_name=method),
        torch.no_grad(),
        raised_by_the_user(f"the callable of {used.name}"),
    ):
        used.use()
    return observer


def dimensions(texts: Sequence[str], option: str) -> dict[str, list[int]]:
    """``x:0,2`` as ``{"x": [0, 2]}``.

    :raises UsageError: ``bad-command-line``
    """
    found: dict[str, list[int]] = {}
    for text in texts:
        path, _, dims = text.rpartition(":")
        numbers = dims.split(",")
        if not path or not all(number.strip().isdigit() for number in numbers):
            raise _bad(text, option, "ARG:DIMS, as in x:0,2")
        found.setdefault(path, []).extend(map(int, numbers))
    return found


def ranges(texts: Sequence[str]) -> dict[str, tuple[int | None, int | None]] | str:
    """``batch=1:64`` as ``{"batch": (1, 64)}``; a side that is left out has no limit. ``observed``
    alone stays as it is.

    :raises UsageError: ``bad-command-line``
    """
    if list(texts) == [OBSERVED]:
        return OBSERVED
    found: dict[str, tuple[int | None, int | None]] = {}
    for text in texts:
        name, _, limits = text.partition("=")
        low, colon, high = limits.partition(":")
        if not name or not colon or not all(side == "" or side.isdigit() for side in (low, high)):
            raise _bad(text, "--range", "SYMBOL=LOW:HIGH, as in batch=1:64")
        found[name] = (int(low) if low else None, int(high) if high else None)
    return found


def _bad(text: str, option: str, form: str) -> UsageError:
    return UsageError(
        f"Argument {option}: {text!r} is not {form}.",
        slug="bad-command-line",
        hint="See: onlooker export --help.",
    )


def _answer(program: Program | Programs, options: argparse.Namespace) -> Answer:
    report = program.report
    verified = report.verified
    code = ExitCode.VERIFIED if verified or options.no_verify else ExitCode.NOT_VERIFIED
    written = [str(place) for place in (options.out, options.recording) if place is not None]

    def show(console: Console) -> None:
        console.print(report.tables(full=options.full))
        console.file.writelines(f"wrote {place}\n" for place in written)

    def data() -> dict[str, object]:
        return {"verified": verified, "files": written, "report": report.to_dict()}

    entries = [part for path in options.entry for part in ("--entry", path)]
    if options.out is None:
        following = to_type(
            "export", options.function, *entries, "--to", options.to, "--out", "program"
        )
    elif options.no_verify:
        following = to_type("verify", str(options.out), options.function, *entries)
    elif options.recording is not None:
        following = to_type("check", str(options.out), str(options.recording))
    else:
        following = to_type("show", str(options.out))
    return Answer(code, show, data, following)
