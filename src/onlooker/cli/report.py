"""``onlooker report``: what the processes of a watched program saw."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TextIO

from ..capture.combine import read_captured
from ..capture.summary import summary_of
from .command import Answer, ExitCode, to_type
from .saved import add_full

__all__ = ["ReportRun"]


class ReportRun:
    """Shows what the processes of a watched program saw, also while it runs.

    Entry points with calls, processes and time; the axes of their arguments; how many graphs they
    need; what the calls could not tell; processes in which nothing was called.
    """

    name = "report"
    example = "report onlooker-run"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options."""
        parser.add_argument("place", type=Path, metavar="DIR", help="what `onlooker run` wrote")
        add_full(parser)

    def run(self, options: argparse.Namespace, stderr: TextIO) -> Answer:
        """Reads and shows; no model is run."""
        summary = summary_of(read_captured(options.place))
        following = ["run", "script.py"]
        if summary.entries:
            following = ["export", str(options.place), "--entry", summary.entries[0].name]
            following += ["--build", "app.py:make_model", "--out", "program"]
        return Answer(
            ExitCode.VERIFIED,
            lambda console: console.print(summary.tables(full=options.full)),
            lambda: {"kind": "run", "report": summary.to_dict()},
            to_type(*following),
        )
