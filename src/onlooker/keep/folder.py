"""A program <-> a folder: ``onlooker.json`` lists the files, ``plan.json`` holds the plans, a
target its graphs.

========================  ==========================================================================
``onlooker.json``         format, target, versions, size and SHA-256 of every other file, all
timings ``plan.json``             plans, names, outputs, joins, signature, verdict: what dispatch
needs ``report.json``           the report, for readers ``recording.json``        the specs of the
calls ``*.pt2``, ``*.onnx``     the graphs, as their target writes them ``weights.safetensors``
the weights of all graphs of torch ``values.safetensors``    the kept values of calls, only with
``values=True`` ========================
==========================================================================

Several programs are such folders inside of one, whose ``onlooker.json`` names them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..core.call import ChangedArgument
from ..core.errors import OnlookerError, SavedFileError
from ..core.path import Path as FieldPath
from ..core.progress import kept_when_interrupted, tell
from ..core.recording import Recording
from ..core.verdict import Tally
from ..disk.atomic import is_being_saved, left_whole, new_folder
from ..disk.codec import read_document, write_document
from ..disk.files import read_file
from ..disk.manifest import (
    MANIFEST,
    check_files,
    check_programs,
    read_index,
    read_manifest,
    write_index,
    write_manifest,
)
from ..disk.text import damaged, read_json, write_json
from ..observing.store import Sample
from ..pytrees.joins import Join
from ..serve.state import ProgramState
from ..targets.target import check_options, files_of
from ..targets.targets import target_of
from ..trace.graph import Graph
from .record import ProgramRecord, check_program, graph_of, record_of, without_calls
from .state import STATE_FILE, read_state, state_record, write_state
from .timings import taken_timings, timed_graphs, timed_recording, untimed_recording, untimed_report
from .values import VALUES, read_values, write_values

__all__ = ["Kept", "load_folder", "save_folder", "save_folders"]

#: the targets whose files are machine code, which loading runs
_MACHINE_CODE = ("aoti",)
#: how often a folder is read that another run is replacing, and the seconds between
_MOST_READS = 40
_PAUSE = 0.05


@dataclass(frozen=True, slots=True)
class Kept:
    """What a folder holds of a program."""

    graphs: tuple[Graph, ...]
    recording: Recording
    samples: tuple[Sample, ...] = ()
    refusals: tuple[str, ...] = ()
    joins: tuple[Join, ...] = ()
    limits: Mapping[FieldPath, tuple[float, float]] = field(default_factory=dict)
    verdict: tuple[Tally, tuple[str, ...]] | None = None
    state: ProgramState | None = None
    untouched: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    changed: tuple[ChangedArgument, ...] = ()


def save_folder(
    kept: Kept,
    report: Mapping[str, object],
    directory: Path,
    *,
    values: bool,
    beside: Sequence[Path] = (),
) -> tuple[Graph, ...]:
    """Writes a program, and puts the folder in its place when it is complete; the graphs with the
    names of their files. ``beside`` are files that are copied into it, and listed.

    :raises SavedFileError: ``folder-not-ours``, ``not-written``
    :raises UnsupportedError: ``not-saved``, ``program-not-saved``, ``tensor-not-saved``
    """
    with _as_before(directory), new_folder(directory) as folder:
        return _written(kept, report, folder, values=values, beside=beside)


def save_folders(
    programs: Mapping[str, tuple[Kept, Mapping[str, object]]],
    directory: Path,
    *,
    values: bool,
    beside: Sequence[Path] = (),
) -> dict[str, tuple[Graph, ...]]:
    """Writes several programs, each with its report, into folders of their names inside of one, and
    puts that one in its place when it is complete; the graphs with the names of their files.
    ``beside`` are files that are copied into the folder of the first one, and listed.

    :raises SavedFileError: ``folder-not-ours``, ``not-written``
    :raises UnsupportedError: ``not-saved``, ``program-not-saved``, ``tensor-not-saved``
    """
    graphs: dict[str, tuple[Graph, ...]] = {}
    with _as_before(directory), new_folder(directory) as folder:
        for name, (kept, report) in programs.items():
            inner = folder / name
            inner.mkdir()
            copied = () if graphs else beside
            graphs[name] = _written(kept, report, inner, values=values, beside=copied)
        write_index(folder, list(programs))
    return graphs


def _as_before(directory: Path) -> contextlib.AbstractContextManager[None]:
    """Says of an interrupted save what became of the folder."""
    return kept_when_interrupted(lambda: f"{directory} is as it was before the save.")


def _written(
    kept: Kept,
    report: Mapping[str, object],
    folder: Path,
    *,
    values: bool,
    beside: Sequence[Path] = (),
) -> tuple[Graph, ...]:
    """Writes a program into an empty folder; the graphs with the names of their files."""
    target = target_of(kept.graphs[0].target)
    tell("saving", detail="graphs and weights")
    files = target.write(kept.graphs, folder)
    tally, unlawful = kept.verdict or (None, ())
    record = ProgramRecord(
        without_calls(kept.recording),
        tuple(replace(record_of(graph), seconds=0.0) for graph in kept.graphs),
        tuple(files),
        kept.refusals,
        kept.joins,
        kept.limits,
        tally,
        unlawful,
        None if kept.state is None else state_record(kept.state),
        kept.untouched,
        kept.changed,
    )
    documents = {
        "plan.json": write_document("plan", ProgramRecord, record),
        "report.json": untimed_report(report),
        "recording.json": write_document("recording", Recording, untimed_recording(kept.recording)),
    }
    for name, document in documents.items():
        (folder / name).write_bytes(write_json(document))
    kept_values = write_values(kept.samples, folder) if values else []
    if kept.state is not None:
        kept_values += write_state(kept.state, folder)
    own = [*documents, *files, *kept_values]
    copied = [path for path in beside if path.name not in (*own, MANIFEST)]
    for path in copied:
        shutil.copyfile(path, folder / path.name)
    timings = taken_timings(kept.graphs, kept.recording, report)
    tell("saving", detail="the digest of every file")
    write_manifest(folder, target.name, [*own, *(path.name for path in copied)], timings)
    return tuple(
        replace(graph, file=file)
        for graph, file in zip(kept.graphs, files_of(kept.graphs, target, files), strict=True)
    )


def load_folder(
    directory: Path, *, machine_code: bool = False, options: Mapping[str, Any] | None = None
) -> Kept | dict[str, Kept]:
    """The program of a folder that :func:`save_folder` wrote, checked at every step; those of a
    folder that :func:`save_folders` wrote, by their names.

    A folder that another run replaces meanwhile is read again. ``options`` are those of the reader
    of the target.

    :raises SavedFileError: ``file-missing``, ``file-foreign``, ``file-newer``, ``file-damaged``,
        ``folder-incomplete``, ``device-missing``, ``machine-code``
    :raises UsageError: ``unknown-option``, and those of the target
    """
    for _ in range(_MOST_READS):
        before = _state(directory)
        try:
            programs = read_index(directory)
            if programs is None:
                return _loaded(directory, machine_code, options or {})
            check_programs(directory, programs)
            return {
                name: _loaded(directory / name, machine_code, options or {}) for name in programs
            }
        except SavedFileError as error:
            refusal = error
        if before == _state(directory) and not is_being_saved(directory):
            break
        time.sleep(_PAUSE)
    left = left_whole(directory)
    if left is None:
        raise refusal
    raise SavedFileError(
        f"{refusal.message} A save of it was killed.",
        slug="save-was-killed",
        hint=(
            f"The program is whole in {left}: load that, or rename it to {directory}. The next save"
            " removes it."
        ),
    ) from refusal


def _state(directory: Path) -> tuple[int, int, int] | None:
    """What is another one after the folder, or its list of files, was replaced."""
    try:
        listed = os.stat(directory / MANIFEST)
        return os.stat(directory).st_ino, listed.st_ino, listed.st_mtime_ns
    except (OSError, ValueError):
        return None


def _loaded(directory: Path, machine_code: bool, options: Mapping[str, Any]) -> Kept:
    manifest = read_manifest(directory)
    listed = manifest["files"]
    check_files(directory, listed)
    _check_listed(["plan.json", "recording.json", "report.json"], listed, directory)
    where = str(directory / "plan.json")
    document = read_json(read_file(directory / "plan.json"), where)
    record: ProgramRecord = read_document(document, "plan", ProgramRecord, where)
    check_program(record, where)
    timings, listing = manifest["timings"], str(directory / MANIFEST)
    recording = timed_recording(_read_recording(record, directory), timings, listing)
    graphs = [graph_of(row, f"{where} at graphs[{i}]") for i, row in enumerate(record.graphs)]
    graphs = timed_graphs(graphs, timings, listing)
    if manifest["target"] != record.graphs[0].target:
        raise damaged(where, "its target is not the one that is listed")
    loaded = _read_graphs(graphs, record.files, listed, directory, machine_code, options)
    samples = read_values(recording, directory) if VALUES in listed else ()
    state = None
    if record.state is not None:
        _check_listed([STATE_FILE], listed, directory)
        state = read_state(record.state, directory, where)
    verdict = None if record.tally is None else (record.tally, record.unlawful)
    return Kept(
        tuple(loaded),
        recording,
        tuple(samples),
        record.refusals,
        record.joins,
        record.limits,
        verdict,
        state,
        record.untouched,
        record.changed,
    )


def _check_listed(names: Sequence[str], listed: Collection[str], directory: Path) -> None:
    missing = [name for name in names if name not in listed]
    if missing:
        raise SavedFileError(
            f"{directory} lacks {missing[0]}: it was not copied as a whole.",
            slug="folder-incomplete",
            hint="Copy the folder again, with all its files.",
        )


def _read_recording(record: ProgramRecord, directory: Path) -> Recording:
    where = str(directory / "recording.json")
    recording: Recording = read_document(
        read_json(read_file(directory / "recording.json"), where), "recording", Recording, where
    )
    if without_calls(recording) != record.recording:
        raise damaged(where, "it is the recording of another program")
    return recording


def _read_graphs(
    graphs: Sequence[Graph],
    files: Sequence[str],
    listed: Collection[str],
    directory: Path,
    machine_code: bool,
    options: Mapping[str, Any],
) -> list[Graph]:
    name = graphs[0].target
    if name in _MACHINE_CODE and not machine_code:
        raise SavedFileError(
            f"{directory} holds machine code for {name!r}, and loading it runs it.",
            slug="machine-code",
            hint="If you trust who made it: onlooker.load(directory, machine_code=True).",
        )
    where = str(directory / "plan.json")
    try:
        target = target_of(name)
        held = files_of(graphs, target, files)
    except OnlookerError as error:
        raise damaged(where, error.message) from error
    _check_listed([*held, *files], listed, directory)
    check_options(target, options, target.reading)
    target.require()
    try:
        read = target.read(graphs, directory, **options)
        return [replace(graph, file=file) for graph, file in zip(read, held, strict=True)]
    except OnlookerError:
        raise
    except Exception as error:  # a reader of another package met what it does not expect
        raise damaged(
            str(directory), f"{name} cannot read it ({type(error).__name__}: {str(error)[:300]})"
        ) from error
