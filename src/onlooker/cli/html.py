"""``onlooker html``: what was recorded, exported and proven, as one file for a browser."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TextIO

from ..capture.combine import Captured, read_captured
from ..core.errors import UsageError
from ..core.recording import Recording
from ..disk.files import write_file
from ..page.page import page_of
from ..program import Program
from ..programs import Programs
from .command import Answer, ExitCode, to_type
from .progress import progress
from .saved import add_program, read_any

__all__ = ["Html"]


class Html:
    """Writes one HTML file about what `onlooker run` recorded, a saved program, or a recording.

    It has the axes over the calls, sizes that come together with the exported ranges and the sizes
    that were proven, relations, guards with the line of the model, entry points, padding, and all of
    it in tables with a search. The file loads nothing from anywhere.
    """

    name = "html"
    example = "html program --out report.html"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options."""
        story = "what `onlooker run` wrote, the folder of a program, or the file of a recording"
        add_program(parser, "DIR|PROGRAM", story)
        parser.add_argument(
            "-o",
            "--out",
            type=Path,
            default=Path("report.html"),
            metavar="FILE",
            help="the file to write; default: %(default)s",
        )

    def run(self, options: argparse.Namespace, stderr: TextIO) -> Answer:
        """Reads, draws and writes; no model is run."""
        out: Path = options.out
        if out.is_dir():
            raise UsageError(
                f"{out} is a directory, and the page is one file.",
                slug="not-a-file",
                hint="Name a file with --out: report.html.",
            )
        with progress(stderr) as say:
            say(f"reading {options.place}")
            found = _read(options)
            say("making the page")
            page = page_of(found, options.place.resolve().name)
            write_file(out, page.encode())
        size = len(page.encode())
        return Answer(
            ExitCode.VERIFIED,
            lambda console: console.print(
                f"wrote {out}, {size / 1000:,.0f} kB: open it in a browser"
            ),
            lambda: {"file": str(out), "bytes": size},
            to_type("report" if isinstance(found, Captured) else "show", str(options.place)),
        )


def _read(options: argparse.Namespace) -> Captured | Program | Programs | Recording:
    """What the place holds: the files of processes, a program or several, or a recording."""
    place: Path = options.place
    is_captured = place.is_dir() and any(place.glob("*.jsonl"))
    return read_captured(place) if is_captured else read_any(options)
