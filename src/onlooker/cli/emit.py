"""``onlooker emit``: settings of other runtimes for a saved program and its traffic."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TextIO

from rich.console import Console

from ..core.recording import Recording
from ..emit.texts import EMITTERS
from .command import Answer, ExitCode, to_type
from .saved import add_program, read_program

__all__ = ["Emit"]


class Emit:
    """Prints the settings of another runtime for a saved program: profiles, bounds, buckets.

    Every size in them is one that the program takes, looked at together with the others. The sizes
    are those of the calls that the program was made from, or of RECORDING.
    """

    name = "emit"
    example = "emit trtexec program calls.json"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options."""
        parser.add_argument("kind", choices=tuple(EMITTERS), help="the runtime, or buckets")
        add_program(parser)
        parser.add_argument(
            "recording", type=Path, metavar="RECORDING", nargs="?", help="the file of a recording"
        )
        parser.add_argument(
            "--count",
            type=int,
            metavar="N",
            help="profiles of each graph, default: 1; buckets and captured sizes, default: 8",
        )

    def run(self, options: argparse.Namespace, stderr: TextIO) -> Answer:
        """Reads both, and writes the text; nothing is run."""
        calls = None if options.recording is None else Recording.load(options.recording)
        found = read_program(options).emit(options.kind, calls, count=options.count)

        def show(console: Console) -> None:
            console.file.write(found.text)
            stderr.writelines(f"note: {note}\n" for note in found.notes)

        corners: list[object] = [
            {"graph": graph, "sizes": dict(sizes)} for graph, sizes in found.corners
        ]
        return Answer(
            ExitCode.VERIFIED,
            show,
            lambda: {"text": found.text, "corners": corners, "notes": list(found.notes)},
            to_type("show", str(options.place)),
            pure=True,
        )
