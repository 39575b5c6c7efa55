"""A folder that is whole or not there: it is made beside its place, and moved there in one step.

A folder that must stay the one it is (an empty one, the working directory, the root of a disk) gets
the new files one by one, after the old ones were moved away. At each moment the old or the new
program is whole somewhere: a run that is killed between two moves leaves it in a hidden folder,
which :func:`left_whole` finds.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from ..core.errors import SavedFileError
from .files import cannot_write, removed_if_empty, sync_folder
from .manifest import MANIFEST, is_ours, listed
from .staging import PREFIX, abandoned, hidden, in_use, moved_into, remove_abandoned, staging

__all__ = ["is_being_saved", "left_whole", "new_folder"]


@contextlib.contextmanager
def new_folder(directory: Path) -> Iterator[Path]:
    """Gives an empty folder to write into, and puts its files in the place of ``directory`` when
    the block ends.

    A run that is killed, or a block that raises, leaves what was there before, or nothing; a killed
    one may leave a hidden folder, which the next one removes. An existing folder is replaced when
    it is empty, or when onlooker wrote every file of it.

    :raises SavedFileError: ``folder-not-ours``, ``not-written``
    """
    target = Path(os.path.realpath(directory))
    _check_replaceable(target, directory)
    stays = _must_stay(target)
    parent, prefix = (target, PREFIX) if stays else (target.parent, _prefix(target))
    try:
        with removed_if_empty(parent), staging(parent, prefix) as beside:
            inside, old = beside / "new", beside / "old"
            inside.mkdir()
            yield inside
            _sync(inside)
            _check_replaceable(target, directory)
            if stays:
                old.mkdir()
                moved_into(target, inside, old, last=MANIFEST)
            else:
                _swap(inside, target, old)
            sync_folder(target if stays else parent)
    except OSError as error:
        raise cannot_write(directory, error) from error
    remove_abandoned(target.parent, _prefix(target))
    remove_abandoned(target)


def left_whole(directory: Path) -> Path | None:
    """The program that a save which was killed has left beside ``directory``, or in it; None
    where there is none.
    """
    for folder in _left(Path(os.path.realpath(directory))):
        for part in (folder / "new", folder / "old"):
            if is_ours(part, whole=True):
                return part
    return None


def is_being_saved(directory: Path) -> bool:
    """True while another run writes the folder."""
    target = Path(os.path.realpath(directory))
    return in_use(target.parent, _prefix(target)) or in_use(target)


def _prefix(target: Path) -> str:
    return f".{target.name[:100]}."


def _left(target: Path) -> list[Path]:
    """Returns the temporary folders of this folder that killed runs have left."""
    return [*abandoned(target.parent, _prefix(target)), *abandoned(target)]


def _must_stay(target: Path) -> bool:
    """True for a folder that must not be replaced by another one, but filled: somebody may stand
    in it.
    """
    if not target.is_dir():
        return False
    if not _names(target) or os.path.ismount(target) or not os.access(target.parent, os.W_OK):
        return True
    try:
        return os.path.samefile(target, os.getcwd())
    except OSError:
        return False


def _names(folder: Path) -> set[str]:
    """Returns the names of all files in a folder, but for the hidden folders of runs."""
    return set(os.listdir(folder)) - {path.name for path in hidden(folder)}


def _check_replaceable(target: Path, directory: Path) -> None:
    if not os.path.lexists(target):
        return
    if target.is_dir() and (not _names(target) or is_ours(target) or _is_half_moved(target)):
        return
    raise SavedFileError(
        f"{directory} holds something that onlooker did not write.",
        slug="folder-not-ours",
        hint="Give the name of a new folder, or remove what is there.",
    )


def _is_half_moved(target: Path) -> bool:
    """True for a folder in which a killed run has left some files of a program, while others are
    in a hidden folder.
    """
    known: set[str] = set()
    for folder in abandoned(target):
        for part in (folder / "new", folder / "old"):
            known |= listed(part)
    return (
        bool(known)
        and all((target / name).is_file() or is_ours(target / name) for name in _names(target))
        and _names(target) <= known
    )


def _sync(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir():  # one of several programs
            _sync(path)
            continue
        handle = os.open(path, os.O_RDWR)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    sync_folder(folder)


def _swap(inside: Path, target: Path, old: Path) -> None:
    """Moves the new folder to its place; no system can replace a folder that is not empty in one
    step.
    """
    if not target.exists():
        os.rename(inside, target)
        return
    os.rename(target, old)
    try:
        os.rename(inside, target)
    except BaseException:
        os.rename(old, target)
        raise
