"""The list of the files of a folder: size and SHA-256 of each, which versions wrote them, and how
long it all took.

The timings have a digest of their own: all else of the list is the same for two runs on the same
calls and model.

The list of a folder of several programs has the name of each, which is the name of its folder, and
the digest of the list there.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.errors import SavedFileError
from ..core.support.progress import tell
from ..core.versions import version_of
from .codec import SCHEMA, check_version
from .files import read_file, write_synced
from .staging import hidden
from .text import damaged, read_json, write_json

__all__ = [
    "MANIFEST",
    "check_files",
    "check_programs",
    "is_entry_name",
    "is_ours",
    "listed",
    "read_index",
    "read_manifest",
    "write_index",
    "write_manifest",
]

#: the name of the list
MANIFEST = "onlooker.json"
_MOST_BYTES = 1 << 26  # the seconds of a million calls among them
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
_KEYS = {"onlooker", "schema", "target", "versions", "files", "sha256"}
_INDEX_KEYS = {"onlooker", "schema", "versions", "programs", "sha256"}
_LONGEST_ENTRY = 100
#: bytes of a file that are read at once
_BLOCK = 1 << 20


def write_manifest(
    folder: Path, target: str, names: Sequence[str], timings: Mapping[str, Any] | None = None
) -> None:
    """Writes the list, after all files that it lists."""
    files = {
        name: {"bytes": (folder / name).stat().st_size, "sha256": _digest(folder / name)}
        for name in names
    }
    document = {
        "onlooker": "program",
        "schema": SCHEMA,
        "target": target,
        "versions": _versions(),
        "files": files,
    }
    timed = {"timings": {**timings, "sha256": _own_digest(timings)}} if timings else {}
    write_synced(
        folder / MANIFEST, write_json({**document, "sha256": _own_digest(document), **timed})
    )


def write_index(folder: Path, names: Sequence[str]) -> None:
    """Writes the list of a folder of several programs, after the lists of all of these."""
    programs = {name: _own_digest(read_manifest(folder / name)) for name in names}
    document = {
        "onlooker": "programs",
        "schema": SCHEMA,
        "versions": _versions(),
        "programs": programs,
    }
    write_synced(folder / MANIFEST, write_json({**document, "sha256": _own_digest(document)}))


def is_entry_name(name: str) -> bool:
    """True for a name of an entry: an identifier of Python that every file system takes."""
    return name.isidentifier() and name.isascii() and len(name) <= _LONGEST_ENTRY


def read_index(folder: Path) -> dict[str, str] | None:
    """The digest of the list of each program of a folder of several; None for another folder.

    :raises SavedFileError: ``file-missing``, ``file-foreign``, ``file-newer``, ``file-damaged``
    """
    path, document = _read_list(folder)
    if not isinstance(document, dict) or document.get("onlooker") != "programs":
        return None
    check_version(document, "programs", str(path))
    programs = document.get("programs")
    if (
        set(document) != _INDEX_KEYS
        or document["sha256"] != _own_digest(document)
        or not isinstance(programs, dict)
        or not programs
        or not all(isinstance(digest, str) for digest in programs.values())
    ):
        raise damaged(str(path), "it is not as it was written")
    for name in programs:
        if not is_entry_name(name):
            raise damaged(str(path), f"{name[:80]!r} is no name of a program in this folder")
    return programs


def check_programs(folder: Path, programs: Mapping[str, str]) -> None:
    """Passes when every program of a folder of several is there, with the list that it was written
    with.

    :raises SavedFileError: ``folder-incomplete``, ``file-damaged``, and as :func:`read_manifest`
    """
    for name, digest in programs.items():
        inner = folder / name
        mode = _mode_of(inner)
        if mode is None:
            raise _incomplete(folder, name)
        if not stat.S_ISDIR(mode):
            raise damaged(str(inner), "it is a link, a file or a device, and no folder")
        if _own_digest(read_manifest(inner)) != digest:
            raise damaged(str(inner / MANIFEST), "it is the list of another program")


def read_manifest(folder: Path) -> dict[str, Any]:
    """The list, checked in itself; its files are not looked at.

    :raises SavedFileError: ``file-missing``, ``file-foreign``, ``file-newer``, ``file-damaged``
    """
    path, document = _read_list(folder)
    check_version(document, "program", str(path))
    own, timings = document.pop("sha256", None), document.pop("timings", {})
    if (
        own != _own_digest(document)
        or {*document, "sha256"} != _KEYS
        or not isinstance(document["files"], dict)
    ):
        raise damaged(str(path), "it is not as it was written")
    for name, entry in document["files"].items():
        _check_entry(name, entry, str(path))
    return {**document, "timings": _checked_timings(timings, str(path))}


def _read_list(folder: Path) -> tuple[Path, Any]:
    """The file of the list, and what it holds.

    :raises SavedFileError: ``file-missing``, ``file-foreign``, ``file-damaged``
    """
    if not os.path.isdir(folder):
        raise SavedFileError(
            f"{folder} is no folder.",
            slug="file-missing",
            hint="Give the folder that program.save() has written.",
        )
    path = folder / MANIFEST
    mode = _mode_of(path)
    if mode is None:
        raise SavedFileError(
            f"{folder} has no {MANIFEST}: it is no program that onlooker saved.",
            slug="file-foreign",
            hint="Give the folder that program.save() has written.",
        )
    if not stat.S_ISREG(mode):
        raise damaged(str(path), "it is a link, a folder or a device, and no file")
    return path, read_json(read_file(path, _MOST_BYTES), str(path))


def _mode_of(path: Path) -> int | None:
    """The kind and permissions of a file, links not followed; None where there is none.

    One question to the system: another process may replace the folder between two.
    """
    try:
        return os.lstat(path).st_mode
    except FileNotFoundError:
        return None


def _checked_timings(timings: Any, where: str) -> dict[str, Any]:
    """The timings without their digest; a folder of an older version has none."""
    if not isinstance(timings, dict) or (timings and timings.get("sha256") != _own_digest(timings)):
        raise damaged(f"{where} at timings", "it is not as it was written")
    return {name: value for name, value in timings.items() if name != "sha256"}


def _check_entry(name: str, entry: Any, where: str) -> None:
    if not _NAME.fullmatch(name) or name == MANIFEST:
        raise damaged(where, f"{name[:80]!r} is no name of a file in this folder")
    if not isinstance(entry, dict) or set(entry) != {"bytes", "sha256"}:
        raise damaged(f"{where} at {name}", "a size and a digest are wanted here")
    if (
        type(entry["bytes"]) is not int
        or entry["bytes"] < 0
        or not isinstance(entry["sha256"], str)
    ):
        raise damaged(f"{where} at {name}", "a size and a digest are wanted here")


def check_files(folder: Path, files: Mapping[str, Mapping[str, Any]]) -> None:
    """Passes when every file is there, is a regular one, and is as it was written.

    :raises SavedFileError: ``folder-incomplete``, ``file-damaged``
    """
    for number, (name, entry) in enumerate(files.items()):
        tell("loading", number, len(files), name)
        path = folder / name
        try:
            status = os.lstat(path)
            if not stat.S_ISREG(status.st_mode):
                raise damaged(str(path), "it is a link, a folder or a device, and no file")
            if status.st_size != entry["bytes"]:
                raise damaged(
                    str(path),
                    f"it has {status.st_size} bytes and was written with {entry['bytes']}",
                )
            if _digest(path) != entry["sha256"]:
                raise damaged(str(path), "its content is not what was written")
        except FileNotFoundError:
            raise _incomplete(folder, name) from None
        except OSError as error:
            raise damaged(str(path), f"it cannot be read ({error.strerror or error})") from error


def _incomplete(folder: Path, name: str) -> SavedFileError:
    return SavedFileError(
        f"{folder} lacks {name}: it was not copied as a whole.",
        slug="folder-incomplete",
        hint="Copy the folder again, with all its files.",
    )


def is_ours(folder: Path, *, whole: bool = False) -> bool:
    """True for a folder in which every file was written by onlooker; when ``whole``, and in
    which all of them are.
    """
    try:
        programs = read_index(folder)
        files: Mapping[str, Any] = {} if programs else read_manifest(folder)["files"]
        if whole:
            check_files(folder, files)
            check_programs(folder, programs or {})
    except SavedFileError:
        return False
    ours = {MANIFEST, *files, *(programs or ()), *(path.name for path in hidden(folder))}
    there = [folder / name for name in programs or () if os.path.lexists(folder / name)]
    return set(os.listdir(folder)) <= ours and all(
        not path.is_symlink() and is_ours(path, whole=whole) for path in there
    )


def listed(folder: Path) -> set[str]:
    """The names of all files, or programs, that the list of a folder has, and of the list; none
    where there is no list.
    """
    try:
        programs = read_index(folder)
        return {MANIFEST, *(programs or read_manifest(folder)["files"])}
    except SavedFileError:
        return set()


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):  # hashlib.file_digest() is there since Python 3.11
            digest.update(block)
    return digest.hexdigest()


def _own_digest(document: Mapping[str, Any]) -> str:
    """The digest of all fields but itself and the timings, which have their own."""
    fields = {name: value for name, value in document.items() if name not in ("sha256", "timings")}
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def _versions() -> dict[str, str]:
    return {name: version_of(name) for name in ("onlooker", "torch")}
