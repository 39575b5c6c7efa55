"""``onlooker code``: the script that exports a saved program, or what was recorded, again."""

from __future__ import annotations

import argparse
from typing import Any, TextIO

from rich.console import Console

from ...capture.export import observer_of, part_of
from ...capture.recorded import is_run, read_seen
from ...core.errors import UsageError
from ...model_source.user_function import has_use, names_a_file, result_of
from ...report.code_layout import quoted
from ..command import Answer, ExitCode, to_type
from ..progress import progress
from ..saved import read_program

__all__ = ["run", "source_of"]


def run(options: argparse.Namespace, stderr: TextIO) -> Answer:
    """Writes the script; of a program nothing is run, a recording is exported."""
    place = str(options.place)
    if options.place.is_file() or is_run(options.place):
        script = _of_recording(options, stderr)
        following = ["export", place, "--build", options.build]
        following += ["--entry", options.entry] if options.entry else []
    else:
        source = source_of(options.build) if options.build else ""
        script = read_program(options).code(to=options.to, source=source)
        following = ["show", place]
        if options.build:
            following = ["verify", place, "--build", options.build]

    def show(console: Console) -> None:
        console.file.write(script)

    return Answer(
        ExitCode.VERIFIED, show, lambda: {"script": script}, to_type(*following), pure=True
    )


def _of_recording(options: argparse.Namespace, stderr: TextIO) -> str:
    """The script of calls that were recorded: the model is exported once, to find out what torch
    takes.

    :raises UsageError: ``no-model``, ``no-such-entry``
    """
    if options.build is None:
        raise UsageError(
            f"{options.place} holds calls, and a script is made of calls and their model.",
            slug="no-model",
            hint="Give the function of the model: --build MODULE:FUNCTION.",
        )
    names = [options.entry] if options.entry else []
    with progress(stderr) as say:
        (seen,) = read_seen(options.place, names)
        say(f"running {options.build}")
        built = result_of(options.build)
        model = built[0] if isinstance(built, tuple) else built
        part = part_of(model, seen, options.entry)
        observer = observer_of(seen, part, [options.place])
        say("exporting")
        program = observer.export(method_name=seen.entry.method, to=options.to or "torch")
        source = source_of(options.build, built) if part is model else ""
        return program.code(to=options.to, source=source)


def source_of(name: str, result: Any = None) -> str:
    """The body of a function that gives the model, for a script which runs in the same directory.

    ``result`` is what the function returned: a model alone, or with a callable, which is the default.
    """
    place, _, attribute = name.rpartition(":")
    part = "[0]" if result is None or has_use(result) else ""
    if names_a_file(place):
        return (
            f"import runpy\n\nreturn runpy.run_path({quoted(place)})[{quoted(attribute)}](){part}"
        )
    return f"from {place} import {attribute}\n\nreturn {attribute}(){part}"
