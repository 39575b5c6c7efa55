"""A recording <-> a file of JSON."""

from __future__ import annotations

from pathlib import Path

from ..core.recording import Recording
from .codec import read_document, write_document
from .files import read_file, write_file
from .text import read_json, write_json

__all__ = ["load_recording", "save_recording"]

_KIND = "recording"


def save_recording(recording: Recording, path: Path) -> None:
    """Writes a recording so that a run that is killed leaves the old file, or none.

    :raises SavedFileError: ``not-written``
    :raises UnsupportedError: ``not-saved``
    """
    document = write_document(_KIND, Recording, recording)
    write_file(path, write_json(document))


def load_recording(path: Path) -> Recording:
    """The recording in a file that :func:`save_recording` wrote.

    :raises SavedFileError: ``file-missing``, ``file-foreign``, ``file-newer``, ``file-damaged``
    """
    where = str(path)
    document = read_json(read_file(path), where)
    recording: Recording = read_document(document, _KIND, Recording, where)
    return recording
