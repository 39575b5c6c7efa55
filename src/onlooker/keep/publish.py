"""The contract of a program, to be published beside the weights of a model: its plan, its report and
the specs of its calls, without graphs, weights and values.

It is a folder ``onlooker`` inside of the folder, or of the repository of the hub, of the model. What
:func:`load_folder` reads of it is a program that checks calls and explains itself, and runs none.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core.errors import MissingPackageError, SavedFileError, UsageError
from ..core.recording import Recording
from ..core.spec import ConstantSpec
from ..disk.atomic import new_folder
from ..disk.codec import document_at, write_document
from ..disk.files import read_file, removed_if_empty, write_file
from ..disk.manifest import (
    MANIFEST,
    check_files,
    read_index,
    read_manifest,
    write_index,
    write_manifest,
)
from ..disk.recordings import load_recording, save_recording
from ..disk.text import read_json, write_json
from .folder import load_folder, untimed_recording
from .record import ProgramRecord

__all__ = ["CONTRACT", "HUB", "RECORDING", "pull", "push_program", "push_recording", "texts_of"]

#: how the name of a repository of the hub begins
HUB = "hf://"
#: the folder of a contract inside of that of a model
CONTRACT = "onlooker"
RECORDING = "recording.json"
_DOCUMENTS = ("plan.json", "report.json", RECORDING)


def push_program(folder: Path, destination: str) -> Recording:
    """Publishes the contract of a program, or of several; gives the calls that are in it, which have no
    values but the constants of calls.

    :raises SavedFileError: as :func:`read_manifest`, ``hub-failed``
    :raises MissingPackageError: ``missing-package``
    """
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / CONTRACT
        programs = read_index(folder)
        calls: list[Recording] = []
        for name in programs or [""]:
            calls.append(_write(folder / name, made / name))
        if programs:
            write_index(made, list(programs))
        _push(made, destination)
    return replace(calls[0], calls=tuple(call for one in calls for call in one.calls))


def push_recording(recording: Recording, destination: str) -> Recording:
    """Publishes the specs of calls; gives what is published.

    :raises SavedFileError: ``not-written``, ``hub-failed``
    :raises MissingPackageError: ``missing-package``
    """
    untimed = untimed_recording(recording)
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / CONTRACT
        made.mkdir()
        save_recording(untimed, made / RECORDING)
        _push(made, destination)
    return untimed


def pull(source: str, into: Path) -> bool:
    """Writes what is published in a folder, or in a repository of the hub, into a folder of its own, when
    it is whole; True for a contract, False for a recording alone.

    :raises SavedFileError: ``nothing-published``, ``hub-failed``, as :func:`load_folder`, and
        ``not-written``
    :raises MissingPackageError: ``missing-package``
    """
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / CONTRACT
        with _published(source) as published:
            _copy(published, made, source)
        if not (made / MANIFEST).exists():
            recording = load_recording(made / RECORDING)
            with removed_if_empty(into):
                save_recording(recording, into / RECORDING)
            return False
        load_folder(made)  # it is whole, and holds what it says
        with new_folder(into) as folder:
            shutil.copytree(made, folder, dirs_exist_ok=True)
    return True


def texts_of(recording: Recording) -> list[str]:
    """The texts that calls were given: they are constants of calls, and may say more than sizes do."""
    specs = [spec for call in recording.calls for _, spec in call.inputs.items()]
    values = [spec.value for spec in specs if isinstance(spec, ConstantSpec)]
    return list(dict.fromkeys(value for value in values if isinstance(value, str)))


def _write(program: Path, folder: Path) -> Recording:
    """Writes the contract of one program."""
    manifest = read_manifest(program)
    check_files(program, {name: manifest["files"][name] for name in _DOCUMENTS})
    record: ProgramRecord = document_at(program / "plan.json", "plan", ProgramRecord)
    recording = load_recording(program / RECORDING)
    shared = replace(record, state=None, weights=None, limits={})  # all have values
    folder.mkdir(parents=True)
    documents = {
        "plan.json": write_document("plan", ProgramRecord, shared),
        "report.json": read_json(read_file(program / "report.json"), str(program / "report.json")),
        RECORDING: write_document("recording", Recording, untimed_recording(recording)),
    }
    for name, each in documents.items():
        (folder / name).write_bytes(write_json(each))
    write_manifest(folder, manifest["target"], _DOCUMENTS)
    return recording


def _push(made: Path, destination: str) -> None:
    """Puts a folder into the one of a model, or into a repository."""
    if not destination.startswith(HUB):
        place = Path(destination) / CONTRACT
        if (made / MANIFEST).exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            with new_folder(place) as folder:
                shutil.copytree(made, folder, dirs_exist_ok=True)
            return
        place.mkdir(parents=True, exist_ok=True)
        write_file(place / RECORDING, (made / RECORDING).read_bytes())
        return
    name, revision = _repository(destination)
    with _of_hub(destination) as hub:
        hub.HfApi().upload_folder(
            repo_id=name,
            revision=revision,
            folder_path=str(made),
            path_in_repo=CONTRACT,
            commit_message="Publish the contract of the exported program",
        )


@contextlib.contextmanager
def _published(source: str) -> Iterator[Path]:
    """The folder in which a contract is published: that of a model, or the folder itself."""
    if source.startswith(HUB):
        name, revision = _repository(source)
        with _of_hub(source) as hub:
            found = hub.snapshot_download(
                repo_id=name, revision=revision, allow_patterns=[f"{CONTRACT}/*"]
            )
        yield Path(found) / CONTRACT
        return
    place = Path(source)
    yield place / CONTRACT if (place / CONTRACT).is_dir() else place


def _copy(published: Path, made: Path, source: str) -> None:
    """Copies the files that a contract has, and no other: the cache of the hub has links."""
    names = [*_DOCUMENTS, MANIFEST]
    inner = [path.name for path in sorted(published.glob("*/")) if (path / MANIFEST).is_file()]
    for folder in ("", *inner):
        for name in names:
            file = published / folder / name
            if file.is_file():
                (made / folder).mkdir(parents=True, exist_ok=True)
                (made / folder / name).write_bytes(read_file(file.resolve()))
    if not ((made / MANIFEST).exists() or (made / RECORDING).exists()):
        raise SavedFileError(
            f"{source} has no contract and no recording of onlooker.",
            slug="nothing-published",
            hint="Publish one: onlooker push PROGRAM DESTINATION.",
        )


def _repository(place: str) -> tuple[str, str | None]:
    """The name of a repository and its revision.

    >>> _repository("hf://org/name@main"), _repository("hf://org/name")
    (('org/name', 'main'), ('org/name', None))

    :raises UsageError: ``bad-command-line``
    """
    name, _, revision = place.removeprefix(HUB).partition("@")
    if name.count("/") != 1 or not all(name.split("/")):
        raise UsageError(
            f"{place} names no repository.",
            slug="bad-command-line",
            hint="Write hf://ORGANISATION/NAME, and @REVISION after it where it is not the newest.",
        )
    return name, revision or None


@contextlib.contextmanager
def _of_hub(place: str) -> Iterator[Any]:
    """Inside the block errors of the hub are one of ours.

    :raises MissingPackageError: ``missing-package``
    :raises SavedFileError: ``hub-failed``
    """
    try:
        import huggingface_hub
    except ImportError as error:
        raise MissingPackageError(
            f"{place} is reached by huggingface_hub, which cannot be imported ({error}).",
            slug="missing-package",
            hint="Install it with: pip install huggingface_hub.",
        ) from error
    try:
        yield huggingface_hub
    except Exception as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())[:500]
        raise SavedFileError(f"{place} cannot be reached: {said}.", slug="hub-failed") from error
