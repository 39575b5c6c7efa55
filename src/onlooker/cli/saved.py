"""Reads a folder with a program, or a file with a recording."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from ..core.errors import UsageError
from ..core.recording import Recording
from ..program import Program
from ..programs import Programs, load

__all__ = [
    "directory_to_write",
    "in_full",
    "read_any",
    "read_program",
    "read_programs",
]


def read_programs(options: argparse.Namespace) -> Program | Programs:
    """The program, or the programs, in the folder that the options name.

    :raises SavedFileError: when it is not one, or not as it was written
    """
    return load(options.place, operators=options.operators, machine_code=options.machine_code)


def read_program(options: argparse.Namespace) -> Program:
    """The program in the folder that the options name.

    :raises SavedFileError: when it is not one, or not as it was written
    :raises UsageError: ``several-programs``
    """
    found = read_programs(options)
    if isinstance(found, Program):
        return found
    raise UsageError(
        f"{options.place} holds several programs: {', '.join(found)}.",
        slug="several-programs",
        hint=f"Name the folder of one: {options.place / next(iter(found))}.",
    )


def read_any(options: argparse.Namespace) -> Program | Programs | Recording:
    """The program, or the programs, in a folder, or the recording in a file.

    :raises SavedFileError: when it is neither
    """
    return Recording.load(options.place) if options.place.is_file() else read_programs(options)


def directory_to_write(place: Path | None) -> None:
    """A file in the way is better found before the work than after.

    :raises UsageError: ``not-a-directory``
    """
    if place is not None and place.exists() and not place.is_dir():
        raise UsageError(
            f"{place} is a file, and the programs are written into a directory.",
            slug="not-a-directory",
            hint="Name another place with --out.",
        )


def in_full(place: Path | None) -> Path | None:
    """A path from the root on: the code of the user may change the working directory."""
    return None if place is None else Path(os.path.abspath(place))
