"""Hidden folders in which files are made before they are moved to their place, in one step each.

A run that is killed leaves its hidden folder behind. Each has a file that its run keeps locked, so
that the next run tells a folder that was abandoned from one that is in use.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator
from pathlib import Path as FilePath

__all__ = ["PREFIX", "abandoned", "hidden", "in_use", "moved_into", "remove_abandoned", "staging"]

#: how the hidden folders inside of a folder begin
PREFIX = ".onlooker-"
_LOCK = "onlooker.lock"
_ATTEMPTS = 100


@contextlib.contextmanager
def staging(parent: FilePath, prefix: str = PREFIX) -> Iterator[FilePath]:
    """A new hidden folder in ``parent``, on the same disk; it is removed when the block ends."""
    made, handle = _made(parent, prefix)
    try:
        yield made
    finally:
        os.close(handle)
        shutil.rmtree(made, ignore_errors=True)


def _made(parent: FilePath, prefix: str) -> tuple[FilePath, int]:
    """A new folder and its locked file; another one, where a run that cleans up took it before
    it was locked.
    """
    for _ in range(_ATTEMPTS):
        made = FilePath(tempfile.mkdtemp(prefix=prefix, dir=parent))
        try:
            handle = os.open(made / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        except FileNotFoundError:
            continue
        except OSError:
            shutil.rmtree(made, ignore_errors=True)
            raise
        if _lock(handle) is not False and _is_still(made / _LOCK, handle):
            return made, handle
        os.close(handle)
    raise FileNotFoundError(
        errno.ENOENT, "hidden folders are removed as fast as they are made", str(parent)
    )


def _lock(handle: int) -> bool | None:
    """Locks a file until it is closed; False where another process has it, None on a file system
    without locks.
    """
    from filelock import lock_descriptor  # only a save needs it, and no program that is watched

    try:
        return lock_descriptor(handle, blocking=False)
    except OSError:
        return None


def _is_still(path: FilePath, handle: int) -> bool:
    try:
        return os.stat(path).st_ino == os.fstat(handle).st_ino
    except OSError:
        return False


def hidden(parent: FilePath, prefix: str = PREFIX) -> list[FilePath]:
    """The hidden folders, of runs that were killed and of others."""
    try:
        found = [
            FilePath(entry.path) for entry in os.scandir(parent) if entry.name.startswith(prefix)
        ]
        return [
            path for path in sorted(found) if not path.is_symlink() and (path / _LOCK).is_file()
        ]
    except OSError:
        return []


def abandoned(parent: FilePath, prefix: str = PREFIX) -> list[FilePath]:
    """The hidden folders of runs that were killed."""
    return [folder for folder in hidden(parent, prefix) if _while_locked(folder, lambda: None)]


def in_use(parent: FilePath, prefix: str = PREFIX) -> bool:
    """True while a run writes into a hidden folder, or where nobody can tell."""
    return not all(_while_locked(folder, lambda: None) for folder in hidden(parent, prefix))


def remove_abandoned(parent: FilePath, prefix: str = PREFIX) -> None:
    """Removes what killed runs have left."""
    for folder in hidden(parent, prefix):
        if _while_locked(folder, functools.partial(shutil.rmtree, folder, ignore_errors=True)):
            _remove_lock(folder)


def _remove_lock(folder: FilePath) -> None:
    """Removes a folder of which only the lock is left: Windows removes no file that is open."""
    with contextlib.suppress(OSError):
        if os.listdir(folder) == [_LOCK]:
            os.unlink(folder / _LOCK)
            os.rmdir(folder)


def _while_locked(folder: FilePath, do: Callable[[], None]) -> bool:
    """Does something while no run can use the folder; False where one does, or where nobody can
    tell.
    """
    try:
        handle = os.open(folder / _LOCK, os.O_RDWR)
    except OSError:  # it is gone meanwhile
        return True
    try:
        is_free = _lock(handle) is True
        if is_free:
            do()
        return is_free
    finally:
        os.close(handle)


def moved_into(
    folder: FilePath, new: FilePath, old: FilePath, *, last: str = "", stays: Collection[str] = ()
) -> None:
    """Moves the files of ``new`` into ``folder``, and those that stood there into ``old``, but for
    what ``stays``.

    The file ``last`` goes first and comes last. When a move fails, all that were made are undone.

    One of ``new``, ``old`` and ``folder`` is whole at every moment.
    """
    moves: list[tuple[FilePath, FilePath]] = []
    came = sorted(os.listdir(new), key=lambda name: (name == last, name))
    there = sorted(os.listdir(folder), key=lambda name: (name != last, name))
    inside = {path.name for path in hidden(folder)}
    stood = [name for name in there if name not in stays and name not in inside]
    try:
        for source, target, names in ((folder, old, stood), (new, folder, came)):
            for name in names:
                os.rename(source / name, target / name)
                moves.append((source / name, target / name))
    except BaseException:
        for before, after in reversed(moves):
            os.rename(after, before)
        raise
