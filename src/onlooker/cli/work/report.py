"""``onlooker report``: what the processes of a watched program saw."""

from __future__ import annotations

import argparse
from typing import TextIO

from ...capture.combine import read_captured
from ...capture.summary import summary_of
from ...disk.urls import is_url
from ..command import Answer, ExitCode, to_type

__all__ = ["run"]


def run(options: argparse.Namespace, stderr: TextIO) -> Answer:
    """Reads and shows; no model is run."""
    summary = summary_of(read_captured(options.place, ordered=False))
    following = ["doctor"]
    if summary.entries and is_url(options.place):
        following = ["combine", str(options.place)]
    elif summary.entries:
        following = ["plan", str(options.place), "--entry", summary.entries[0].name]
    return Answer(
        ExitCode.VERIFIED,
        lambda console: console.print(summary.tables(full=options.full)),
        lambda: {"kind": "run", "report": summary.to_dict()},
        to_type(*following),
    )
