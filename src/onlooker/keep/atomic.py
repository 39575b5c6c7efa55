"""A folder that is whole or not there: it is made beside its place, and moved there in one step."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from ..core.errors import SavedFileError
from ..core.files import cannot_write, sync_folder

__all__ = ["new_folder"]


@contextlib.contextmanager
def new_folder(directory: Path, is_ours: Callable[[Path], bool]) -> Iterator[Path]:
    """Gives an empty folder to write into, and puts it in the place of ``directory`` when the block ends.

    A run that is killed, or a block that raises, leaves what was there before, or nothing; a killed one may leave
    a folder beside it whose name begins with a dot. What is there before is replaced when it is empty, or when
    ``is_ours`` says that onlooker wrote every file of it.

    :raises SavedFileError: ``folder-not-ours``, ``not-written``
    """
    target = Path(os.path.realpath(directory))
    _check_replaceable(target, directory, is_ours)
    beside = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{target.name[:100]}.", dir=target.parent))
        inside = beside / "new"
        inside.mkdir()
        yield inside
        _sync(inside)
        _check_replaceable(target, directory, is_ours)
        _swap(inside, target, beside / "old")
        sync_folder(target.parent)
    except OSError as error:
        raise cannot_write(directory, error) from error
    finally:
        if beside is not None:
            shutil.rmtree(beside, ignore_errors=True)


def _check_replaceable(target: Path, directory: Path, is_ours: Callable[[Path], bool]) -> None:
    if not os.path.lexists(target):
        return
    if target.is_dir() and (not any(target.iterdir()) or is_ours(target)):
        return
    raise SavedFileError(
        f"{directory} holds something that onlooker did not write.",
        slug="folder-not-ours",
        hint="Give the name of a new folder, or remove what is there.",
    )


def _sync(folder: Path) -> None:
    for path in folder.iterdir():
        handle = os.open(path, os.O_RDWR)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    sync_folder(folder)


def _swap(inside: Path, target: Path, old: Path) -> None:
    """Moves the new folder to its place; no system can replace a folder that is not empty in one step."""
    if not target.exists():
        os.rename(inside, target)
        return
    os.rename(target, old)
    try:
        os.rename(inside, target)
    except BaseException:
        os.rename(old, target)
        raise
