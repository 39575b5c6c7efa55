"""Files that are whole or not there: written beside their place first, and read with distrust."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path as FilePath

from ..core.errors import SavedFileError
from .staging import moved_into, remove_abandoned, staging
from .text import MOST_BYTES

__all__ = [
    "cannot_write",
    "read_file",
    "removed_if_empty",
    "sync_folder",
    "write_file",
    "write_into",
    "write_synced",
]


def write_file(path: FilePath, content: bytes) -> None:
    """Writes a file so that a run that is killed leaves the old one, or none.

    :raises SavedFileError: ``not-written``
    """
    target = FilePath(os.path.realpath(path))
    beside = ""
    try:
        handle, beside = tempfile.mkstemp(prefix=f".{target.name[:100]}.", dir=target.parent)
        os.close(handle)
        write_synced(FilePath(beside), content)
        os.chmod(beside, 0o666 & ~_umask())
        os.replace(beside, target)
        sync_folder(target.parent)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        if beside:
            with contextlib.suppress(OSError):
                os.unlink(beside)


@contextlib.contextmanager
def write_into(folder: FilePath) -> Iterator[FilePath]:
    """Gives an empty folder to write into, and moves its files into ``folder`` when the block ends.

    A block that raises changes nothing in ``folder``; files of other names stay there.

    :raises SavedFileError: ``not-written``
    """
    try:
        with removed_if_empty(folder), staging(folder) as beside:
            inside, old = beside / "new", beside / "old"
            inside.mkdir()
            old.mkdir()
            yield inside
            others = [name for name in os.listdir(folder) if not os.path.lexists(inside / name)]
            moved_into(folder, inside, old, stays=others)
            sync_folder(folder)
    except OSError as error:
        raise cannot_write(folder, error) from error
    remove_abandoned(folder)


@contextlib.contextmanager
def removed_if_empty(folder: FilePath) -> Iterator[None]:
    """Makes a folder and those above it; when the block raises, the new ones are removed again."""
    made = []
    while not os.path.lexists(folder):
        made.append(folder)
        folder = folder.parent
    try:
        for path in reversed(made):
            path.mkdir(exist_ok=True)
        yield
    except BaseException:
        for path in made:
            with contextlib.suppress(OSError):
                path.rmdir()
        raise


def _umask() -> int:
    """Returns the permissions that new files lack; the system tells them only when they are set."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def write_synced(path: FilePath, content: bytes) -> None:
    """Writes a file and waits until the disk has it."""
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: FilePath) -> None:
    """Waits until the disk has the names in a folder, where the system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def cannot_write(path: FilePath, error: OSError) -> SavedFileError:
    """The error for a place where nothing can be written."""
    return SavedFileError(
        f"{path} cannot be written: {error.strerror or error}.",
        slug="not-written",
        hint="What stood there before is as it was. Give a place that can be written and has room.",
    )


def read_file(path: FilePath, most: int = MOST_BYTES) -> bytes:
    """The content of a regular file of at most ``most`` bytes; devices and pipes are not opened for
    reading.

    :raises SavedFileError: ``file-missing``, ``file-damaged``
    """
    try:
        # without waiting for a writer, should it be a pipe
        handle = os.open(
            path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        )
        with open(handle, "rb") as file:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode) or status.st_size > most:
                raise SavedFileError(
                    f"{path} is no file of at most {most} bytes.",
                    slug="file-damaged",
                    hint="Give a file that onlooker has saved.",
                )
            return file.read(most + 1)[:most]
    except (OSError, ValueError) as error:
        if isinstance(error, SavedFileError):
            raise
        raise SavedFileError(
            f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.",
            slug="file-missing",
            hint="Give the path of a file that onlooker has saved.",
        ) from error
