"""``onlooker show``: what a program or a recording holds."""

from __future__ import annotations

import argparse
from typing import TextIO

from rich.console import Console

from ..capture.recorded import is_run
from ..core.recording import Recording
from ..program import Program
from ..programs import Programs
from ..report.calls import CallsReport, calls_report
from .command import Answer, ExitCode, to_type
from .report import run as report
from .saved import read_any

__all__ = ["run"]


def run(options: argparse.Namespace, stderr: TextIO) -> Answer:
    """Reads and shows."""
    if is_run(options.place):
        return report(options, stderr)
    found = read_any(options)
    if isinstance(found, Recording):
        return _recording(calls_report(found), options)
    if isinstance(found, Programs):
        return _programs(found, options)
    return _program(found, options)


def _recording(report: CallsReport, options: argparse.Namespace) -> Answer:
    return Answer(
        ExitCode.VERIFIED,
        lambda console: console.print(report.tables(full=options.full)),
        lambda: {"kind": "recording", "report": report.to_dict()},
        to_type("plan", str(options.place)),
    )


def _programs(programs: Programs, options: argparse.Namespace) -> Answer:
    report = programs.report
    return Answer(
        ExitCode.VERIFIED,
        lambda console: console.print(report.tables(full=options.full)),
        lambda: {"kind": "programs", "report": report.to_dict()},
        to_type("show", str(options.place / next(iter(programs)))),
    )


def _program(program: Program, options: argparse.Namespace) -> Answer:
    report, place = program.report, options.place

    def show(console: Console) -> None:
        console.print(report.tables(full=options.full))

    axes = [row.axis for graph in report.graphs for row in graph.axes if not row.asked.isdigit()]
    path, _, dim = (axes or [""])[0].removesuffix("]").partition(".shape[")
    following = (
        to_type("explain", str(place), path, *([dim] if dim else []))
        if path
        else to_type("code", str(place))
    )
    return Answer(
        ExitCode.VERIFIED,
        show,
        lambda: {"kind": "program", "report": report.to_dict()},
        following,
    )
