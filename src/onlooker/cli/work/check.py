"""``onlooker check``: new traffic against a saved program."""

from __future__ import annotations

import argparse
from typing import TextIO

from ...capture.recorded import read_recording
from ...core.traffic import ViolationKind
from ..command import Answer, ExitCode, to_type
from ..saved import read_program

__all__ = ["run", "words_of"]

#: the violations that are about an axis, which can be explained
_OF_AXES = frozenset(
    {ViolationKind.SIZE, ViolationKind.RELATION, ViolationKind.RANGE, ViolationKind.STEP}
)


def run(options: argparse.Namespace, stderr: TextIO) -> Answer:
    """Reads both, and compares specs; no model is run."""
    program = read_program(options)
    recording = read_recording(options.recording, options.entry, like=program.recording)
    found = program.check(recording)
    axes = [words_of(row.where) for row in found.violations if row.kind in _OF_AXES]
    following = ("explain", str(options.place), *axes[0]) if axes else ("show", str(options.place))
    return Answer(
        ExitCode.of(found.holds),
        lambda console: console.print(found.tables(full=options.full)),
        found.to_dict,
        to_type(*following),
    )


def words_of(where: str) -> tuple[str, ...]:
    """An axis as `onlooker explain` takes it: the path, and the dimension where there is one."""
    path, _, dim = where.removesuffix("]").partition(".shape[")
    return (path, dim) if dim else (path,)
