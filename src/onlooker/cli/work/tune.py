"""``onlooker tune``: the smallest program of a target that holds a bound."""

from __future__ import annotations

import argparse
from typing import TextIO

from rich.console import Console

from ...core.errors import UsageError
from ...program import Program
from ..command import Answer, ExitCode, to_type
from ..progress import progress
from ..saved import directory_to_write, read_program
from .export import metric_of
from .verify import with_model

__all__ = ["run"]


def run(options: argparse.Namespace, stderr: TextIO) -> Answer:
    """Loads, watches the model, and searches.

    :raises UsageError: ``no-model``, ``no-bound`` and others of the search
    """
    directory_to_write(options.out)
    if options.build is None:
        raise UsageError(
            "There is no model to prove the steps with.",
            slug="no-model",
            hint="Give the function of the model: --build MODULE:FUNCTION.",
        )
    with progress(stderr) as say:
        say(f"reading {options.place}")
        program = with_model(read_program(options), options, say, options.keep)
        assert isinstance(program, Program)
        say("tuning")
        names = None if options.precisions is None else options.precisions.split(",")
        found = program.tune(
            options.to,
            agreement=options.agreement,
            error=options.error,
            atol=options.atol,
            precisions=names,
            calibration=options.calibration,
            runs=options.runs,
            trials=options.trials,
            into=options.out,
            **metric_of(options),
        )
        place = None if options.out is None or found.step is None else options.out / "program"
        if place is not None:
            say(f"writing into {place}")
            found.program.save(place)

    def show(console: Console) -> None:
        console.file.write(f"{found}\n")

    following = ["tune", "--help"] if place is None else ["show", str(place)]
    code = ExitCode.NOT_VERIFIED if found.step is None else ExitCode.VERIFIED
    return Answer(code, show, found.to_dict, to_type(*following))
