"""A program as plain files, for those who run it without onlooker: one file, a file for each graph,
or a folder for ONNX Runtime GenAI.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core.errors import ExportError, OnlookerWarning, UsageError, warn
from ..core.support.kinds import as_path
from ..core.verdict import Tally
from ..disk.files import write_into
from ..observing.wrapping.adapted_model import AdaptedModel
from ..serve.runnable import RunnableProgram
from ..targets.onnx.readers.genai import MODEL, write_genai
from ..targets.onnx.readers.sentences import write_sentence_transformers
from ..targets.onnx.readers.web import (
    DTYPES,
    WebFile,
    check_for_web,
    checked_dtypes,
    write_model,
    write_settings,
)
from ..targets.save import save_graph
from ..targets.single_file import check_file_name, write_one
from ..targets.stand_ins import check_weights_are_here
from ..targets.targets import target_of
from ..trace.graph import Graph, check_graphs
from ..verify.check import sized_calls
from ..verify.conversion import converted, is_exact
from ..verify.verification import verified
from .weights import write_genai_adapters

__all__ = [
    "graphs_in_one_file",
    "save_file",
    "save_genai",
    "save_graphs",
    "save_sentence_transformers",
    "save_web",
]

logger = logging.getLogger(__name__)
#: one that no number exceeds: shapes, dtypes and NaN are compared, and distances are measured
_ANY = 1e300


def save_file(
    program: RunnableProgram, path: Path, *, values: bool, beside: Sequence[Path]
) -> None:
    """Writes a program as one file; its graphs then have the name of the file.

    :raises UsageError: ``wrong-suffix``, ``folder-only``, ``not-a-file``
    :raises SavedFileError: ``not-written``
    :raises UnsupportedError: ``several-graphs``, ``no-single-file``
    :raises ExportError: ``not-mergeable``
    """
    contents = program.contents
    check_file_name(path, target_of(contents.graphs[0].target), values=values, beside=beside)
    chosen = graphs_in_one_file(program)
    write_one(chosen, path)
    names = {graph.name for graph in chosen}
    graphs = tuple(
        replace(graph, file=path.name) if graph.name in names else graph
        for graph in contents.graphs
    )
    program.contents = replace(contents, graphs=graphs)


def graphs_in_one_file(program: RunnableProgram) -> tuple[Graph, ...]:
    """The graphs that one file needs: those of the form of the first one where they serve all
    watched calls. A graph for calls that leave an argument out, which no call did, is none of
    them: whoever runs the file gives all inputs.
    """
    contents = program.contents
    check_weights_are_here(contents.graphs)
    chosen = [graph for graph in contents.graphs if graph.form == contents.graphs[0].form]
    names = {graph.name for graph in chosen}
    calls = sized_calls(contents, contents.recording) if contents.recording.calls else ()
    if not all(call.graph in names for call, _ in calls):
        return contents.graphs
    for graph in contents.graphs:
        if graph.name not in names:
            logger.info("%s serves no watched call, and is not in the file", graph.name)
    return tuple(chosen)


def save_graphs(graphs: Sequence[Graph], directory: object) -> list[Path]:
    """Writes one file for each graph, and those with their weights, and gives their paths.

    :raises UnsupportedError: ``no-graphs``
    :raises UsageError: ``not-a-directory``
    :raises SavedFileError: ``not-written``
    """
    check_graphs(graphs)
    check_weights_are_here(graphs)
    folder = _directory(directory, "The folder of the graphs")
    with write_into(folder) as inside:
        if all(graph.target == "torch" for graph in graphs):
            names = [save_graph(graph, inside / f"{graph.name}.pt2").name for graph in graphs]
        else:
            names = target_of(graphs[0].target).write(graphs, inside)
    return [folder / name for name in names]


def save_genai(
    program: RunnableProgram,
    directory: object,
    *,
    config: Any,
    generation_config: Any,
    tokenizer: Any,
    context_length: int | None,
) -> list[Path]:
    """Writes a folder for ONNX Runtime GenAI, and gives the paths of its files; both configurations
    are by default those of the watched model. Adapters that are an argument have a file each.

    :raises UnsupportedError: ``not-for-genai``
    :raises UsageError: ``bad-config``, ``no-end-token``, ``no-tokenizer``, ``not-a-directory``
    :raises SavedFileError: ``not-written``
    """
    check_weights_are_here(program.contents.graphs)
    folder = _directory(directory, "The folder for ONNX Runtime GenAI")
    watched, weights = _watched_model(program), program.weights
    adapters = weights if weights is not None and weights.are_adapters else None
    if config is None:
        config = getattr(watched, "config", None)
    if generation_config is None:
        generation_config = getattr(watched, "generation_config", None)
    with write_into(folder) as inside:
        decoder = write_genai(
            program.contents.graphs,
            inside,
            config=config,
            generation_config=generation_config,
            tokenizer=tokenizer,
            context_length=context_length,
            adapters="" if adapters is None else adapters.argument,
        )
        if adapters is not None:
            write_genai_adapters(adapters, decoder.graph, inside / MODEL)
        return _moved(inside, folder)


def save_sentence_transformers(
    program: RunnableProgram, directory: object, model: Any
) -> list[Path]:
    """Writes a folder for sentence-transformers, and gives the paths of its files; ``model`` is by
    default the one that was watched.

    :raises UnsupportedError: ``not-for-sentence-transformers``
    :raises ExportError: ``not-mergeable``
    :raises UsageError: ``not-a-directory``
    :raises SavedFileError: ``not-written``
    """
    folder = _directory(directory, "The folder for sentence-transformers")
    own = _watched_model(program) if model is None else model
    with write_into(folder) as inside:
        write_sentence_transformers(graphs_in_one_file(program), inside, own)
        return _moved(inside, folder)


def save_web(
    program: RunnableProgram,
    directory: object,
    tokenizer: Any,
    *,
    config: Any,
    dtypes: Sequence[str],
    verify: bool,
    atol: float | None,
    agreement: float | None,
) -> list[WebFile]:
    """Writes a folder for transformers.js, and gives its files; the configuration is by default that
    of the watched model.

    :raises UnsupportedError: ``not-for-web``
    :raises UsageError: ``bad-variant``, ``bad-config``, ``no-tokenizer``, ``not-a-directory``,
        ``not-from-torch``, and those of a verification
    :raises ExportError: those of a conversion to ONNX
    :raises SavedFileError: ``not-written``
    """
    folder = _directory(directory, "The folder for transformers.js")
    chosen = checked_dtypes(dtypes)
    watched = _watched_model(program)
    own = getattr(watched, "config", None) if config is None else config
    check_for_web(own)
    found: list[WebFile] = []
    outside: list[str] = []
    with write_into(folder) as inside:
        for dtype in chosen:
            made = _of_dtype(program, dtype)
            if made is None:
                continue
            is_judged = dtype == "fp32" or not (atol is None and agreement is None)
            tally = _distance(made, atol, agreement) if verify else None
            path, files = write_model(graphs_in_one_file(made), inside, dtype)
            size = sum((inside / file).stat().st_size for file in files)
            found.append(WebFile(path, dtype, size, tally, is_judged))
            outside += [path.name] if len(files) > 1 else []
        generates = getattr(watched, "generation_config", None)
        write_settings(inside, own, generates, tokenizer, type(watched).__name__, outside)
    return [replace(file, path=folder / file.path) for file in found]


def _of_dtype(program: RunnableProgram, dtype: str) -> RunnableProgram | None:
    """The program of ONNX in a dtype of transformers.js; None where its weights cannot have it."""
    precision = DTYPES[dtype][0]
    try:
        return converted(program, "onnx", {"precision": precision} if precision else {})
    except ExportError as refusal:
        if refusal.slug != "onnx-not-quantised":
            raise
        warn(
            OnlookerWarning(
                f"The folder for transformers.js has no file of {dtype}: {refusal.message}",
                slug="dtype-left-out",
                hint="The other dtypes are there: from_pretrained(folder, {dtype: 'fp16'}).",
            )
        )
        return None


def _distance(program: RunnableProgram, atol: float | None, agreement: float | None) -> Tally:
    """The trials of one of several precisions. An exact copy is verified; of another one no trial
    fails for its numbers alone where nobody said how near they have to come.
    """
    if is_exact(program.contents.graphs):
        return verified(program)
    return verified(program, atol=_ANY if atol is None else atol, agreement=agreement or 0.0)


def _watched_model(program: RunnableProgram) -> Any:
    """The model that was watched; None where there is none in this process."""
    watched = program.lab.subject.watched if program.lab is not None else None
    return watched.model if isinstance(watched, AdaptedModel) else watched


def _moved(inside: Path, folder: Path) -> list[Path]:
    """The paths that the files below ``inside`` will have in ``folder``."""
    files = sorted(path for path in inside.rglob("*") if path.is_file())
    return [folder / path.relative_to(inside) for path in files]


def _directory(directory: object, what: str) -> Path:
    folder = as_path(directory, what)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file.", slug="not-a-directory", hint="Name a directory.")
    return folder
