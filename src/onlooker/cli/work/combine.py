"""``onlooker combine``: the files of several runs, or machines, in one folder."""

from __future__ import annotations

import argparse
from typing import TextIO

from ...capture.combine import combine, read_captured
from ..command import Answer, ExitCode, to_type

__all__ = ["run"]


def run(options: argparse.Namespace, stderr: TextIO) -> Answer:
    """Combines, and names what the processes do not agree about."""
    files = combine(options.places, options.out)
    captured = read_captured(options.out)
    contradictions = captured.contradictions()
    lines = [f"{len(files)} processes in {options.out}", *contradictions]
    return Answer(
        ExitCode.VERIFIED,
        lambda console: console.file.writelines(f"{line}\n" for line in lines),
        lambda: {
            "into": str(options.out),
            "processes": [{"name": one.name, "digest": one.digest} for one in captured.processes],
            "contradictions": list(contradictions),
        },
        to_type("report", str(options.out)),
    )
