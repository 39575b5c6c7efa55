"""``onlooker emit``: settings of other runtimes for a saved program and its traffic."""

from __future__ import annotations

import argparse
from typing import TextIO

from rich.console import Console

from ...capture.recorded import read_recording
from ..command import Answer, ExitCode, to_type
from ..saved import read_program

__all__ = ["run"]


def run(options: argparse.Namespace, stderr: TextIO) -> Answer:
    """Reads both, and writes the text; nothing is run."""
    program = read_program(options)
    calls = None
    if options.recording is not None:
        calls = read_recording(options.recording, options.entry, like=program.recording)
    found = program.emit(options.kind, calls, count=options.count)

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
