"""``onlooker html``: what was recorded, exported and proven, as one file for a browser."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TextIO

from ...capture.combine import Captured, read_captured
from ...capture.recorded import is_run
from ...core.errors import UsageError
from ...core.recording import Recording
from ...disk.files import write_file
from ...page.page import page_of
from ...program import Program
from ...programs import Programs
from ..command import Answer, ExitCode, to_type
from ..progress import progress
from ..saved import read_any

__all__ = ["run"]


def run(options: argparse.Namespace, stderr: TextIO) -> Answer:
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
        lambda console: console.print(f"wrote {out}, {size / 1000:,.0f} kB: open it in a browser"),
        lambda: {"file": str(out), "bytes": size},
        to_type("report" if isinstance(found, Captured) else "show", str(options.place)),
    )


def _read(options: argparse.Namespace) -> Captured | Program | Programs | Recording:
    """Reads the place: the files of processes, a program or several, or a recording."""
    place: Path = options.place
    return read_captured(place) if is_run(place) else read_any(options)
