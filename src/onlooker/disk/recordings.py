"""A recording <-> a file of JSON."""

from __future__ import annotations

from pathlib import Path

from ..core.recording import Recording
from .codec import document_at, write_document
from .files import write_file
from .text import write_json

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
    recording: Recording = document_at(path, _KIND, Recording)
    return recording
