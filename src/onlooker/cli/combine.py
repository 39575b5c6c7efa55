"""``onlooker combine``: the files of several runs, or machines, in one folder."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TextIO

from ..capture.combine import combine, read_captured
from .command import Answer, ExitCode, to_type

__all__ = ["Combine"]


class Combine:
    """Puts what `onlooker run` wrote into several folders, on several machines perhaps, into one.

    Each process keeps its file, with its host, pid and rank. The order of the folders does not
    matter, nor whether one is given twice; of a file that was copied while its process ran, the
    longer one is kept.
    """

    name = "combine"
    example = "combine rank0 rank1 --into all"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options."""
        parser.add_argument(
            "places", type=Path, nargs="+", metavar="DIR", help="what `onlooker run` wrote"
        )
        parser.add_argument(
            "--into",
            type=Path,
            default=Path("onlooker-run"),
            metavar="DIR",
            help="default: %(default)s",
        )

    def run(self, options: argparse.Namespace, stderr: TextIO) -> Answer:
        """Combines, and names what the processes do not agree about."""
        files = combine(options.places, options.into)
        captured = read_captured(options.into)
        contradictions = captured.contradictions()
        lines = [f"{len(files)} processes in {options.into}", *contradictions]
        return Answer(
            ExitCode.VERIFIED,
            lambda console: console.file.writelines(f"{line}\n" for line in lines),
            lambda: {
                "into": str(options.into),
                "processes": [
                    {"name": one.name, "digest": one.digest} for one in captured.processes
                ],
                "contradictions": list(contradictions),
            },
            to_type("report", str(options.into)),
        )
