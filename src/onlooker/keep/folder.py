"""A program <-> a folder: what stands in it, and how it is written and read.

========================  ===================================================================
``onlooker.json``         format, target, versions, size and SHA-256 of every other file, all
                          timings
``plan.json``             plans, names, outputs, joins, signature, verdict: what dispatch needs
``report.json``           the report, for readers
``recording.json``        the specs of the calls
``*.pt2``, ``*.onnx``     the graphs, as their target writes them
``weights.safetensors``   the weights of all graphs of torch
``blocks.safetensors``    the weights of equal blocks, which are an argument of the graphs
``adapter_*``             the matrices of each adapter, which are an argument of the graphs
``*.adapters.onnx``       graphs of ONNX for ``onnxruntime.LoraAdapter``, with defaults for these
``values.safetensors``    the kept values of calls, only with ``values=True``
========================  ===================================================================

Several programs are such folders inside of one, whose ``onlooker.json`` names them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core.errors import OnlookerError, SavedFileError
from ..core.recording import Recording
from ..core.runtimes import RUNTIMES
from ..core.support.progress import kept_when_interrupted, tell
from ..disk.atomic import is_being_saved, left_whole, new_folder
from ..disk.codec import document_at, write_document
from ..disk.manifest import (
    MANIFEST,
    check_files,
    check_programs,
    read_index,
    read_manifest,
    write_index,
    write_manifest,
)
from ..disk.text import damaged, write_json
from ..serve.runnable import RunnableProgram
from ..serve.state import ProgramState
from ..serve.weights import ProgramWeights
from ..targets.stand_ins import check_weights_are_here
from ..targets.target import files_of
from ..targets.targets import check_options, target_of
from ..trace.graph import Graph, check_graphs
from .record import (
    ProgramRecord,
    check_program,
    contents_of,
    graph_of,
    record_of_program,
    without_calls,
)
from .state import STATE_FILE, read_state, state_record, write_state
from .values import VALUES, read_values, write_values
from .weights import read_weights, weights_record, write_adapters, write_weights

__all__ = ["load_folder", "save_folder", "save_folders"]


# How long everything took, in one field of a folder: all else of two runs on the same calls and
# model is the same.
def taken_timings(
    graphs: Sequence[Graph], recording: Recording, report: Mapping[str, Any]
) -> dict[str, Any]:
    """The seconds of each call, each export and each stage."""
    return {
        "calls": [call.seconds for call in recording.calls],
        "graphs": [graph.seconds for graph in graphs],
        "stages": {stage["stage"]: stage["seconds"] for stage in report["stages"]},
    }


def untimed_recording(recording: Recording) -> Recording:
    """The recording without the seconds of its calls."""
    return replace(recording, calls=tuple(replace(call, seconds=0.0) for call in recording.calls))


def untimed_report(report: Mapping[str, Any]) -> dict[str, Any]:
    """The report without seconds."""
    graphs = [
        {name: value for name, value in graph.items() if name != "seconds"}
        for graph in report["graphs"]
    ]
    return {name: value for name, value in {**report, "graphs": graphs}.items() if name != "stages"}


def timed_recording(recording: Recording, timings: Mapping[str, Any], where: str) -> Recording:
    """The recording with the seconds of its calls; a folder of an older version has them in the
    recording.

    :raises SavedFileError: ``file-damaged``
    """
    if not timings:
        return recording
    seconds = _numbers(timings, "calls", len(recording.calls), where)
    pairs = zip(recording.calls, seconds, strict=True)
    return replace(recording, calls=tuple(replace(call, seconds=took) for call, took in pairs))


def timed_graphs(graphs: Sequence[Graph], timings: Mapping[str, Any], where: str) -> list[Graph]:
    """The graphs with the seconds of their exports; a folder of an older version has them in the
    plan.

    :raises SavedFileError: ``file-damaged``
    """
    if not timings:
        return list(graphs)
    seconds = _numbers(timings, "graphs", len(graphs), where)
    return [replace(graph, seconds=took) for graph, took in zip(graphs, seconds, strict=True)]


def _numbers(timings: Mapping[str, Any], name: str, count: int, where: str) -> list[float]:
    found = timings.get(name)
    if (
        not isinstance(found, list)
        or len(found) != count
        or not all(type(took) in (int, float) for took in found)
    ):
        raise damaged(f"{where} at timings", f"{count} numbers of seconds are wanted for {name}")
    return [float(took) for took in found]


#: how often a folder is read that another run is replacing, and the seconds between
_MOST_READS = 40
_PAUSE = 0.05


def save_folder(
    program: RunnableProgram,
    report: Mapping[str, object],
    directory: Path,
    *,
    values: bool,
    beside: Sequence[Path] = (),
) -> None:
    """Writes a program, and puts the folder in its place when it is complete; its graphs then have
    the names of their files. ``beside`` are files that are copied into it, and listed.

    :raises SavedFileError: ``folder-not-ours``, ``not-written``
    :raises UnsupportedError: ``not-saved``, ``program-not-saved``, ``tensor-not-saved``
    """
    with _as_before(directory), new_folder(directory) as folder:
        files = _written(program, report, folder, values=values, beside=beside)
    _name_files(program, files)


def save_folders(
    programs: Mapping[str, tuple[RunnableProgram, Mapping[str, object]]],
    directory: Path,
    *,
    values: bool,
    beside: Sequence[Path],
) -> None:
    """Writes several programs, each with its report, into folders of their names inside of one, and
    puts that one in its place when it is complete. ``beside`` are files that are copied into the
    folder of the first one, and listed.

    :raises SavedFileError: ``folder-not-ours``, ``not-written``
    :raises UnsupportedError: ``not-saved``, ``program-not-saved``, ``tensor-not-saved``
    """
    files: dict[str, list[str]] = {}
    with _as_before(directory), new_folder(directory) as folder:
        for name, (program, report) in programs.items():
            inner = folder / name
            inner.mkdir()
            copied = () if files else beside
            files[name] = _written(program, report, inner, values=values, beside=copied)
        write_index(folder, list(programs))
    for name, (program, _) in programs.items():
        _name_files(program, files[name])


def _name_files(program: RunnableProgram, files: Sequence[str]) -> None:
    """Notes the file of each graph."""
    pairs = zip(program.contents.graphs, files, strict=True)
    graphs = tuple(replace(graph, file=file) for graph, file in pairs)
    program.contents = replace(program.contents, graphs=graphs)


def _as_before(directory: Path) -> contextlib.AbstractContextManager[None]:
    """Says of an interrupted save what became of the folder."""
    return kept_when_interrupted(lambda: f"{directory} is as it was before the save.")


def _written(
    program: RunnableProgram,
    report: Mapping[str, object],
    folder: Path,
    *,
    values: bool,
    beside: Sequence[Path] = (),
) -> list[str]:
    """Writes a program into an empty folder, and gives the name of the file of each graph."""
    check_graphs(program.contents.graphs)
    check_weights_are_here(program.contents.graphs, streamed=not values)
    contents = replace(program.contents, limits=program.limits)
    state, weights = program.state, program.weights
    target = target_of(contents.graphs[0].target)
    tell("saving", detail="graphs and weights")
    files = target.write(contents.graphs, folder)
    record = record_of_program(
        contents,
        files,
        None if state is None else state_record(state),
        None if weights is None else weights_record(weights),
    )
    documents = {
        "plan.json": write_document("plan", ProgramRecord, record),
        "report.json": untimed_report(report),
        "recording.json": write_document(
            "recording", Recording, untimed_recording(contents.recording)
        ),
    }
    for name, document in documents.items():
        (folder / name).write_bytes(write_json(document))
    kept_values = write_values(program.samples, folder) if values else []
    if state is not None:
        kept_values += write_state(state, folder)
    if weights is not None:
        kept_values += write_weights(weights, folder)
        kept_values += write_adapters(weights, contents.graphs, folder)
    own = [*documents, *files, *kept_values]
    copied = [path for path in beside if path.name not in (*own, MANIFEST)]
    for path in copied:
        shutil.copyfile(path, folder / path.name)
    timings = taken_timings(contents.graphs, contents.recording, report)
    tell("saving", detail="the digest of every file")
    write_manifest(folder, target.name, [*own, *(path.name for path in copied)], timings)
    return files_of(contents.graphs, target, files)


def load_folder(
    directory: Path, *, machine_code: bool = False, options: Mapping[str, Any] | None = None
) -> RunnableProgram | dict[str, RunnableProgram]:
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
    """Gives a value that changes when the folder, or its list of files, is replaced."""
    try:
        listed = os.stat(directory / MANIFEST)
        return os.stat(directory).st_ino, listed.st_ino, listed.st_mtime_ns
    except (OSError, ValueError):
        return None


def _loaded(directory: Path, machine_code: bool, options: Mapping[str, Any]) -> RunnableProgram:
    manifest = read_manifest(directory)
    listed = manifest["files"]
    check_files(directory, listed)
    _check_listed(["plan.json", "recording.json", "report.json"], listed, directory)
    where = str(directory / "plan.json")
    record: ProgramRecord = document_at(directory / "plan.json", "plan", ProgramRecord)
    check_program(record, where)
    timings, listing = manifest["timings"], str(directory / MANIFEST)
    recording = timed_recording(_read_recording(record, directory), timings, listing)
    graphs = [graph_of(row, f"{where} at graphs[{i}]") for i, row in enumerate(record.graphs)]
    graphs = timed_graphs(graphs, timings, listing)
    if manifest["target"] != record.graphs[0].target:
        raise damaged(where, "its target is not the one that is listed")
    is_contract = not set(record.files) & set(listed)
    if not is_contract:
        graphs = _read_graphs(graphs, record.files, listed, directory, machine_code, options)
    samples = read_values(recording, directory) if VALUES in listed else ()
    state: ProgramState | None = None
    if record.state is not None:
        _check_listed([STATE_FILE], listed, directory)
        state = read_state(record.state, directory, where)
    weights: ProgramWeights | None = None
    if record.weights is not None:
        _check_listed(record.weights.files, listed, directory)
        weights = read_weights(record.weights, directory, where)
    contents = contents_of(record, graphs, recording)
    return RunnableProgram(contents, samples, state=state, weights=weights)


def _check_listed(names: Sequence[str], listed: Collection[str], directory: Path) -> None:
    missing = [name for name in names if name not in listed]
    if missing:
        raise SavedFileError(
            f"{directory} lacks {missing[0]}: it was not copied as a whole.",
            slug="folder-incomplete",
            hint="Copy the folder again, with all its files.",
        )


def _read_recording(record: ProgramRecord, directory: Path) -> Recording:
    place = directory / "recording.json"
    recording: Recording = document_at(place, "recording", Recording)
    if without_calls(recording) != record.recording:
        raise damaged(str(place), "it is the recording of another program")
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
    if RUNTIMES[name].is_machine_code and not machine_code:
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
