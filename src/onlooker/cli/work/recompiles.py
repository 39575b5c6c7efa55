"""``onlooker recompiles``: how often torch.compile compiles a model for its calls."""

from __future__ import annotations

import argparse
from typing import TextIO

from rich.console import Console

from ..command import Answer, ExitCode, to_type
from ..progress import progress
from .export import called_parts, calls_elsewhere, read_source, watch_source

__all__ = ["run"]


def run(options: argparse.Namespace, stderr: TextIO) -> Answer:
    """Watches the model, or reads what was recorded, and counts for each part that was called."""
    where = ["--build", options.build] if options.build else []
    where = [*([options.source] if options.source else []), *where]
    read_source(options)
    elsewhere = calls_elsewhere(options)
    with progress(stderr) as say:
        watched, _ = watch_source(options, elsewhere, say)
        found = []
        for name, observer in called_parts(watched).items():
            say(f"compiling {name}".rstrip())
            probe = not options.no_probe
            found.append(observer.recompiles(probe=probe, most_calls=options.calls))

    def show(console: Console) -> None:
        for one in found:
            console.print(one.text(), markup=False, highlight=False, end="")

    return Answer(
        ExitCode.VERIFIED,
        show,
        lambda: {"entries": [one.data() for one in found]},
        to_type("plan", *(where or options.argv[1:])),
    )
