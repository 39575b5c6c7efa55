"""``onlooker check``: new traffic against a saved program."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TextIO

from ..core.recording import Recording
from ..core.traffic import BreachKind
from .command import Answer, ExitCode, to_type
from .saved import add_full, add_program, read_program

__all__ = ["Check"]

#: the breaches that are about an axis, which can be explained
_OF_AXES = frozenset({BreachKind.SIZE, BreachKind.RELATION, BreachKind.RANGE, BreachKind.STEP})


class Check:
    """Checks recorded calls against a saved program: which fall outside, by which axis or argument.

    Exits with 0 when a graph serves every call, with 2 when one falls outside.
    """

    name = "check"
    example = "check program calls.json"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options."""
        add_program(parser)
        add_full(parser)
        parser.add_argument(
            "recording", type=Path, metavar="RECORDING", help="the file of a recording"
        )

    def run(self, options: argparse.Namespace, stderr: TextIO) -> Answer:
        """Reads both, and compares specs; no model is run."""
        recording = Recording.load(options.recording)
        found = read_program(options).check(recording)
        axes = [_axis(row.where) for row in found.breaches if row.kind in _OF_AXES]
        following = (
            ("explain", str(options.place), *axes[0]) if axes else ("show", str(options.place))
        )
        return Answer(
            ExitCode.VERIFIED if found.holds else ExitCode.NOT_VERIFIED,
            lambda console: console.print(found.tables(full=options.full)),
            found.to_dict,
            to_type(*following),
        )


def _axis(where: str) -> tuple[str, ...]:
    path, _, dim = where.removesuffix("]").partition(".shape[")
    return (path, dim) if dim else (path,)
