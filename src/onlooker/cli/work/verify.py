"""``onlooker verify``: a saved program against its model, or against the values that were saved
with it; or the export of another maker against the model.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console

from ...capture.export import observer_of, part_of
from ...capture.recorded import read_recording, read_seen
from ...core.errors import UsageError
from ...core.verdict import Check, Tallies, Tally
from ...foreign.open import is_foreign
from ...foreign.verify import verify_export
from ...model_source.user_function import Used, has_use, result_of, used_by
from ...program import Program
from ...programs import Programs, check_known
from ..command import Answer, ExitCode, as_options, to_type
from ..entries import entry_name, watch_entries
from ..progress import Say, progress
from ..saved import read_programs
from .export import metric_of, numbers_by_name, ranges, watch

__all__ = ["run", "with_model"]

#: the options that ask something of the trials
_ASKED = ("sizes", "seed", "trials", "seconds", "agreement")


def run(options: argparse.Namespace, stderr: TextIO) -> Answer:
    """Loads, which checks the files, and tries."""
    if is_foreign(options.place):
        return _of_export(options, stderr)
    _check_of_export(options)
    asked = _asked(options)
    with progress(stderr) as say:
        say(f"reading {options.place}")
        program = read_programs(options)
        if options.build is None:
            say("comparing with the values that were saved")
            return _answer(program, program.verify_saved(atol=options.atol), options)
        fresh = with_model(program, options, say)
        say("verifying")
        with _workers(options) as workers:
            return _answer(fresh, fresh.verify(atol=options.atol, **asked, **workers), options)


def with_model(
    program: Program | Programs, options: argparse.Namespace, say: Say, keep: int = 3
) -> Program | Programs:
    """The program, or the programs, with the model that a function gives, and with calls of it, of
    which the values of some are kept.

    :raises UsageError: ``bad-command-line``, ``bad-entry``, ``bad-function``
    """
    _check_entries(program, options)
    say(f"running {options.build}")
    built = result_of(options.build)
    if has_use(built):
        say("watching its use")
        return _seen_again(program, used_by(options.build, built), options.entry, keep)
    say("calling it as the recorded calls did")
    return _called_again(program, built, options)


@contextlib.contextmanager
def _workers(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The processes that make the trials beside this one, where they are asked for.

    :raises UsageError: ``bad-workers``
    """
    if options.workers is not None and options.workers < 1:
        raise UsageError(
            f"workers is {options.workers}.",
            slug="bad-workers",
            hint="Give a number of processes.",
        )
    if options.workers in (None, 1):
        yield {}
        return
    with ProcessPoolExecutor(options.workers - 1, multiprocessing.get_context("spawn")) as pool:
        yield {"executor": pool, "build": options.build}


def _of_export(options: argparse.Namespace, stderr: TextIO) -> Answer:
    """The export of another maker against the model.

    :raises UsageError: ``no-model``, ``bad-command-line``
    """
    if options.build is None:
        raise UsageError(
            f"There is no model to compare {options.place} with.",
            slug="no-model",
            hint="Give the function of the model: --build MODULE:FUNCTION.",
        )
    ours = {"--entry": options.entry, "--agreement": options.agreement, "--metric": options.metric}
    for option, given in ours.items():
        if not given:
            continue
        raise UsageError(
            f"Argument {option} is for programs of onlooker.",
            slug="bad-command-line",
            hint="Give --method, and a function that returns the part that was exported.",
        )
    place = Path(os.path.abspath(options.place))
    asked = _asked(options)
    with progress(stderr) as say:
        say(f"running {options.build}")
        built, recording = result_of(options.build), None
        if options.recording is None or has_use(built):
            say("watching its use")
            observer = watch(used_by(options.build, built), options.method)
        else:
            say("calling it as the recorded calls did")
            (seen,) = read_seen(options.recording, [])
            observer = observer_of(seen, part_of(built, seen), [options.recording])
        if options.recording is not None and has_use(built):
            own = observer.recording(options.method)
            recording = read_recording(options.recording, like=own)
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
            **({} if options.atol is None else {"atol": options.atol}),
            **asked,
        )
    following = to_type("export", options.build, "--out", "program")

    def show(console: Console) -> None:
        console.print(report.tables(full=options.full))
        console.file.write(f"{report.repair_text}\n" if report.repair else "")

    return Answer(
        ExitCode.of(report.holds),
        show,
        report.to_dict,
        following,
    )


def _check_of_export(options: argparse.Namespace) -> None:
    """Passes where nothing is asked that has a meaning for the export of another maker alone.

    :raises UsageError: ``bad-command-line``
    """
    hints = {
        "recording": f"Type: {to_type('check', str(options.place), str(options.recording))}.",
        "range": "Give --sizes NAME=SIZES for sizes to try, or export again with --range.",
        "graph": "All graphs of a program are tried.",
        "component": "A program of onlooker has its folder: name that.",
    }
    for name, hint in hints.items():
        if getattr(options, name):
            raise UsageError(
                f"Argument --{name} is for the export of another maker.",
                slug="bad-command-line",
                hint=hint,
            )


def _check_entries(program: Program | Programs, options: argparse.Namespace) -> None:
    """Passes where all of several programs are named, and at most one entry for one.

    :raises UsageError: ``bad-command-line``
    """
    if isinstance(program, Programs):
        named = [entry_name(path) for path in options.entry]
        missing = [name for name in program if name not in named]
        if missing:
            raise UsageError(
                f"{options.place} holds several programs, and --entry does not name"
                f" {', '.join(missing)}.",
                slug="bad-command-line",
                hint="Give --entry for each, as for the export, or the folder of one program.",
            )
    if isinstance(program, Program) and len(options.entry) > 1:
        raise UsageError(
            f"{options.place} holds one program, and --entry names {len(options.entry)}.",
            slug="bad-command-line",
            hint="Give one --entry, or the folder that holds several programs.",
        )


def _seen_again(
    program: Program | Programs, used: Used, entries: Sequence[str], keep: int
) -> Program | Programs:
    """The program, or the programs, with what was seen in a new use of the model."""
    if isinstance(program, Programs):
        return watch_entries(used, entries, keep).adopted(program)
    if entries:
        (observer,) = watch_entries(used, entries, keep).values()
        return observer.adopted(program)
    return watch(used, program.recording.method, keep).adopted(program)


def _called_again(
    program: Program | Programs, built: Any, options: argparse.Namespace
) -> Program | Programs:
    """The program, or the programs, with calls of the model as those that they were made from: the
    folder has their specs.

    :raises UsageError: ``bad-entry``, ``bad-function`` for blocks and adapters, whose weights are seen in
        a use of their model
    """
    each = program.values() if isinstance(program, Programs) else [program]
    if any(one.weights for one in each):
        raise UsageError(
            f"{options.build} returned a model without its use, and the weights of {options.place} are"
            " inputs.",
            slug="bad-function",
            hint="Return the model and a callable that uses it, as for the export.",
        )
    paths = options.entry or [None]
    names = [entry_name(path) for path in options.entry] if isinstance(program, Programs) else []
    made = {}
    for path, seen in zip(paths, read_seen(options.place, names), strict=True):
        observer = observer_of(seen, part_of(built, seen, path), [options.place])
        if isinstance(program, Program):
            return observer.adopted(program)
        name = entry_name(path)
        check_known(name, program, "--entry")
        made[name] = observer.adopted(program[name])
    return Programs(made)


def _asked(options: argparse.Namespace) -> dict[str, Any]:
    """Reads the options that ask for trials, which need a model.

    :raises UsageError: ``no-model``, ``bad-command-line``
    """
    asked = {name: getattr(options, name) for name in _ASKED}
    asked = {name: value for name, value in asked.items() if value is not None}
    asked |= metric_of(options)
    if asked and options.build is None:
        raise UsageError(
            f"There is no model to try --{', --'.join(asked)} with.",
            slug="no-model",
            hint="Give the function of the model: --build MODULE:FUNCTION.",
        )
    return {**asked, "sizes": sizes_of(asked["sizes"])} if "sizes" in asked else asked


def sizes_of(texts: Sequence[str]) -> dict[str, list[int]]:
    """``sequence=3,500`` as ``{"sequence": [3, 500]}``.

    :raises UsageError: ``bad-command-line``
    """
    return numbers_by_name(texts, "=", "--sizes", "NAME=SIZES, as in sequence=3,500", "verify")


def _answer(
    program: Program | Programs, tally: Tally | Tallies, options: argparse.Namespace
) -> Answer:
    is_proof = options.build is not None
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
    code = ExitCode.of(passed)
    following = ["show", place]
    if is_proof and not passed and tally.accepting:
        following = [*options.argv, *as_options(tally.accepting)]
    return Answer(code, show, data, to_type(*following))


def _failed(tally: Tally | Tallies) -> list[Check]:
    return [check for check in tally.checks if not check.passed]


def _tells(check: Check) -> bool:
    """True for a trial that passes, and would not with other weights: with any weights NaN stays NaN, and a result
    without elements is the same.
    """
    is_empty = 0 in dict(check.sizes).values()
    return check.passed and not is_empty and not check.label.endswith("infinite values")


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
            " model with --build."
        )
    agree = f"{tally.passed} of {tally.total} saved calls give what the model gave"
    return f"{place} is as it was written, {agree}, largest difference {tally.difference:.1e}"
