"""``onlooker verify``: a saved program against its model, or against the values that were saved
with it; or the export of another maker against the model.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console

from ..core.errors import UsageError
from ..core.recording import Recording
from ..core.verdict import Check, Tallies, Tally
from ..foreign.open import is_foreign
from ..foreign.verify import verify_export
from ..program import Program
from ..programs import Programs
from .command import Answer, ExitCode, to_type
from .entries import add_entry, watch_entries
from .export import add_range, ranges, watch
from .progress import progress
from .saved import add_full, add_program, read_programs
from .user_function import HELP, Used, load_function

__all__ = ["Verify"]

#: the options that ask something of the trials
_ASKED = ("sizes", "seed", "trials", "seconds", "agreement")


class Verify:
    """Proves a saved program again: against your model, or against the values that were saved with
    it.

    With FUNCTION, the model is watched in its use, and the program is tried on these calls and on
    sizes that no call had. Without it there is no model: the files are checked, and the calls that
    were saved with their values. Programs of several entries want the same --entry as the export.
    """

    name = "verify"
    example = "verify program app.py:build"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options."""
        add_program(parser)
        add_full(parser)
        parser.add_argument("function", metavar="MODULE:FUNCTION", nargs="?", help=HELP)
        add_entry(parser)
        foreign = parser.add_argument_group("for the export of another maker")
        foreign.add_argument("--build", metavar="MODULE:FUNCTION", help="the same as FUNCTION")
        foreign.add_argument(
            "--recording", type=Path, metavar="FILE", help="try the sizes of these calls as well"
        )
        foreign.add_argument(
            "--method", default="forward", help="the method to watch; default: %(default)s"
        )
        foreign.add_argument(
            "--graph",
            action="append",
            default=[],
            metavar="NAME",
            help="the calls that the file stands for, where the model needs several graphs",
        )
        foreign.add_argument(
            "--component", metavar="NAME", help="of a folder of transformers; the method of a .pte"
        )
        add_range(foreign)
        parser.add_argument(
            "--atol",
            type=float,
            metavar="X",
            default=1e-5,
            help="largest difference allowed; default: %(default)s",
        )
        parser.add_argument(
            "--agreement",
            type=float,
            metavar="SHARE",
            help=(
                "least share of tokens for which the largest score stands at the same place;"
                " default: 1.0 for a program of another precision than its model"
            ),
        )
        parser.add_argument(
            "--sizes",
            action="append",
            metavar="NAME=SIZES",
            help=(
                "sizes of a symbol or an axis to try as well, beside those of other names:"
                " sequence=3,500"
            ),
        )
        parser.add_argument(
            "--seed", type=int, help="decides the sizes and values that are chosen; default: 0"
        )
        parser.add_argument("--trials", type=int, metavar="N", help="the most trials")
        parser.add_argument(
            "--seconds", type=float, metavar="N", help="the time after which no trial is begun"
        )

    def run(self, options: argparse.Namespace, stderr: TextIO) -> Answer:
        """Loads, which checks the files, and tries."""
        options.function = options.function or options.build
        if is_foreign(options.place):
            return _of_export(options, stderr)
        asked = _asked(options)
        with progress(stderr) as say:
            say(f"reading {options.place}")
            program = read_programs(options)
            if options.function is None:
                say("comparing with the values that were saved")
                return _answer(program, program.verify_saved(atol=options.atol), options)
            _check_entries(program, options)
            say(f"running {options.function}")
            used = load_function(options.function)
            say("watching its use")
            fresh = _seen_again(program, used, options.entry)
            say("verifying")
            return _answer(fresh, fresh.verify(atol=options.atol, **asked), options)


def _of_export(options: argparse.Namespace, stderr: TextIO) -> Answer:
    """The export of another maker against the model.

    :raises UsageError: ``no-model``, ``bad-command-line``
    """
    if options.function is None:
        raise UsageError(
            f"There is no model to compare {options.place} with.",
            slug="no-model",
            hint="Give the function of the model: --build MODULE:FUNCTION.",
        )
    for option, given in (("--entry", options.entry), ("--agreement", options.agreement)):
        if not given:
            continue
        raise UsageError(
            f"Argument {option} is for programs of onlooker.",
            slug="bad-command-line",
            hint="Give --method, and a function that returns the part that was exported.",
        )
    place = Path(os.path.abspath(options.place))
    recording = None if options.recording is None else Recording.load(options.recording)
    asked = _asked(options)
    with progress(stderr) as say:
        say(f"running {options.function}")
        used = load_function(options.function)
        say("watching its use")
        observer = watch(used, options.method)
        say("verifying")
        report = verify_export(
            observer,
            place,
            recording=recording,
            method_name=options.method,
            only=options.graph,
            component=options.component,
            machine_code=options.machine_code,
            ranges=ranges(options.range) if options.range else None,
            atol=options.atol,
            **asked,
        )
    following = to_type("export", options.function, "--out", "program")
    return Answer(
        ExitCode.VERIFIED if report.holds else ExitCode.NOT_VERIFIED,
        lambda console: console.print(report.tables(full=options.full)),
        report.to_dict,
        following,
    )


def _check_entries(program: Program | Programs, options: argparse.Namespace) -> None:
    """Passes where entries are named for several programs, and at most one for one.

    :raises UsageError: ``bad-command-line``
    """
    if isinstance(program, Programs) and not options.entry:
        raise UsageError(
            f"{options.place} holds several programs: {', '.join(program)}.",
            slug="bad-command-line",
            hint="Give --entry for each, as for the export.",
        )
    if isinstance(program, Program) and len(options.entry) > 1:
        raise UsageError(
            f"{options.place} holds one program, and --entry names {len(options.entry)}.",
            slug="bad-command-line",
            hint="Give one --entry, or the folder that holds several programs.",
        )


def _seen_again(
    program: Program | Programs, used: Used, entries: Sequence[str]
) -> Program | Programs:
    """The program, or the programs, with what was seen in a new use of the model."""
    if isinstance(program, Programs):
        return watch_entries(used, entries).adopted(program)
    if entries:
        (observer,) = watch_entries(used, entries).values()
        return observer.adopted(program)
    return watch(used, program.recording.method).adopted(program)


def _asked(options: argparse.Namespace) -> dict[str, Any]:
    """What the options ask of the trials, which need a model.

    :raises UsageError: ``no-model``, ``bad-command-line``
    """
    asked = {name: getattr(options, name) for name in _ASKED}
    asked = {name: value for name, value in asked.items() if value is not None}
    if asked and options.function is None:
        raise UsageError(
            f"There is no model to try --{', --'.join(asked)} with.",
            slug="no-model",
            hint="Give the function of the model: MODULE:FUNCTION.",
        )
    return {**asked, "sizes": sizes_of(asked["sizes"])} if "sizes" in asked else asked


def sizes_of(texts: Sequence[str]) -> dict[str, list[int]]:
    """``sequence=3,500`` as ``{"sequence": [3, 500]}``.

    :raises UsageError: ``bad-command-line``
    """
    found: dict[str, list[int]] = {}
    for text in texts:
        name, _, listed = text.rpartition("=")
        numbers = listed.split(",")
        if not name or not all(number.strip().isdigit() for number in numbers):
            raise UsageError(
                f"Argument --sizes: {text!r} is not NAME=SIZES, as in sequence=3,500.",
                slug="bad-command-line",
                hint="See: onlooker verify --help.",
            )
        found.setdefault(name, []).extend(map(int, numbers))
    return found


def _answer(
    program: Program | Programs, tally: Tally | Tallies, options: argparse.Namespace
) -> Answer:
    is_proof = options.function is not None
    passed = program.report.verified if is_proof else tally.total > 0 and tally.failed == 0
    sentence = _sentence(tally, options.place, is_proof=is_proof, passed=passed)

    def show(console: Console) -> None:
        if is_proof:
            console.print(program.report.tables(full=options.full))
        else:  # a report names the trials that failed
            console.file.writelines(
                f"{check.outcome.value}: {check.label}: {check.note}\n" for check in _failed(tally)
            )
        console.file.write(f"{sentence}\n")

    def data() -> dict[str, object]:
        failed: list[object] = [
            {"label": check.label, "note": check.note} for check in _failed(tally)
        ]
        found: dict[str, object] = {
            "verified": passed,
            "passed": tally.passed,
            "total": tally.total,
            "failed": failed,
        }
        return {**found, "report": program.report.to_dict()} if is_proof else found

    place = str(options.place)
    following = to_type("show", place) if is_proof else to_type("verify", place, "app.py:build")
    return Answer(ExitCode.VERIFIED if passed else ExitCode.NOT_VERIFIED, show, data, following)


def _failed(tally: Tally | Tallies) -> list[Check]:
    return [check for check in tally.checks if not check.passed]


def _tells(check: Check) -> bool:
    """True for a trial that passes, and would not with other weights: NaN stays NaN with any."""
    return check.passed and not check.label.endswith("infinite values")


def _sentence(tally: Tally | Tallies, place: Path, *, is_proof: bool, passed: bool) -> str:
    if tally.blocked:
        return f"NOT verified: {tally.summary}"
    if is_proof:
        weights = (
            ""
            if any(map(_tells, tally.checks))
            else "; does the function give the model the same weights every time?"
        )
        word = tally.verdict if passed else "NOT verified"
        return (
            f"{word}, {tally.passed} of {tally.total} checks passed, largest difference"
            f" {tally.difference:.1e}{weights}"
        )
    if not tally.total:
        return (
            f"{place} is as it was written, and holds no values to try: give the function of the"
            " model."
        )
    agree = f"{tally.passed} of {tally.total} saved calls give what the model gave"
    return f"{place} is as it was written, {agree}, largest difference {tally.difference:.1e}"
