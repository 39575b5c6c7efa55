"""``onlooker combine``: the files of several runs, or machines, in one folder, or as tables."""

from __future__ import annotations

import argparse
from typing import TextIO

from ...capture.combine import combine, read_captured
from ...capture.tables import write_tables
from ..command import Answer, ExitCode, printing, to_type

__all__ = ["run"]


def run(options: argparse.Namespace, stderr: TextIO) -> Answer:
    """Combines, and names what the processes do not agree about."""
    if options.parquet:
        return _tables(options)
    files = combine(options.places, options.out)
    captured = read_captured(options.out, ordered=False)
    contradictions = captured.contradictions()
    lines = [f"{len(files)} processes in {options.out}", *contradictions]
    return Answer(
        ExitCode.VERIFIED,
        printing(lines),
        lambda: {
            "into": str(options.out),
            "processes": [{"name": one.name, "digest": one.digest} for one in captured.processes],
            "contradictions": list(contradictions),
        },
        to_type("report", str(options.out)),
    )


def _tables(options: argparse.Namespace) -> Answer:
    """Writes tables."""
    rows = write_tables(options.places, options.out)
    return Answer(
        ExitCode.VERIFIED,
        lambda console: console.file.writelines(
            f"{options.out}/{name}: {count} rows\n" for name, count in rows.items()
        ),
        lambda: {"into": str(options.out), "rows": dict(rows)},
        to_type("report", str(options.places[0])),
    )
