"""``onlooker show``: what a program or a recording holds."""

from __future__ import annotations

import argparse
from typing import TextIO

from ...capture.recorded import is_run
from ...core.recording import Recording
from ...programs import Programs
from ...report.calls import CallsReport, calls_report
from ...report.report import Report
from ...report.reports import Reports
from ..command import Answer, ExitCode, to_type
from ..saved import read_any
from .check import words_of
from .report import run as report

__all__ = ["run"]


def run(options: argparse.Namespace, stderr: TextIO) -> Answer:
    """Reads and shows."""
    if is_run(options.place):
        return report(options, stderr)
    found, place = read_any(options), str(options.place)
    shown: CallsReport | Report | Reports
    if isinstance(found, Recording):
        kind, shown, following = "recording", calls_report(found), ["plan", place]
    elif isinstance(found, Programs):
        kind, shown, following = "programs", found.report, ["show", f"{place}/{next(iter(found))}"]
    else:
        kind, shown = "program", found.report
        axes = [row.axis for graph in found.report.graphs for row in graph.axes if row.changes]
        following = ["explain", place, *words_of(axes[0])] if axes else ["code", place]
    return Answer(
        ExitCode.VERIFIED,
        lambda console: console.print(shown.tables(full=options.full)),
        lambda: {"kind": kind, "report": shown.to_dict()},
        to_type(*following),
    )
