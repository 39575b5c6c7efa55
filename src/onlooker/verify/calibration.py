"""The calls that a precision is calibrated on, and those that are held out to prove it.

Bounds of activations are measured on calls: by default on half of the watched calls whose values were
kept, drawn by a seed. The other half is held out: the verdict speaks of these, and of calls that nobody
made.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..core.errors import ObservationError, UsageError
from ..core.recording import Recording
from ..core.support.kinds import as_call
from ..observing.samples import Sample
from ..repairs.numbers.float_tensors import with_float_tensors
from ..serve.runnable import RunnableProgram
from ..trace.graph import Graph

__all__ = ["CALIBRATION", "CalibrationCalls", "calibration_calls", "calls_calibrated_on"]

#: the option of a graph that names the calls
CALIBRATION = "calibration"
_GIVEN = "given calls"
_WATCHED = "watched calls"


@dataclass(frozen=True, slots=True)
class CalibrationCalls:
    """The inputs of each graph in some calls, by the name of the graph, and the calls in words."""

    inputs: Mapping[str, list[list[Any]]]
    label: str


def calibration_calls(
    program: RunnableProgram, graphs: Sequence[Graph], given: Any, seed: int
) -> CalibrationCalls:
    """The calls to calibrate on: those that are ``given``, each ``(args, kwargs)`` or a dict of
    arguments by name, or kept in a folder of ``onlooker run``; else half of the kept calls of the
    program.

    :raises SavedFileError: ``file-missing`` and others of a folder
    :raises ObservationError: ``no-calls``
    :raises UsageError: ``no-calibration`` where a graph takes none of them
    :raises ArgumentKindError: ``not-a-call``
    """
    with torch.no_grad():  # as in all trials
        return _calibration_calls(program, graphs, given, seed)


def _calibration_calls(
    program: RunnableProgram, graphs: Sequence[Graph], given: Any, seed: int
) -> CalibrationCalls:
    if given is None:
        chosen = _half_of(program, graphs, seed)
        numbers = ", ".join(str(sample.call.index) for sample in chosen)
        label, calls = f"{_WATCHED} {numbers}", [sample.arguments() for sample in chosen]
    else:
        calls = _bound(program, given)
        label = f"{len(calls)} {_GIVEN}"
    found = _routed(program.with_graphs(graphs), calls)
    lacking = [graph.name for graph in graphs if not found[graph.name]]
    if lacking:
        raise UsageError(
            f"None of the {len(calls)} calls to calibrate on is one of {', '.join(lacking)}.",
            slug="no-calibration",
            hint=(
                "Keep the values of more calls, observer(model, keep=64), or give calls:"
                " calibration=[(args, kwargs), ...]."
            ),
        )
    return CalibrationCalls(found, label)


def _half_of(program: RunnableProgram, graphs: Sequence[Graph], seed: int) -> list[Sample]:
    """Half of the kept calls of each graph, one at least, in their order."""
    if not program.samples:
        raise UsageError(
            "The program has no values of calls to calibrate on.",
            slug="no-values",
            hint="Save it with program.save(directory, values=True), or give calibration=.",
        )
    dispatcher = program.with_graphs(graphs).dispatcher
    by_graph: dict[str, list[Sample]] = {}
    for sample in program.samples:
        graph = dispatcher.taker(sample.arguments())
        if graph is not None:
            by_graph.setdefault(graph.name, []).append(sample)
    numbers = random.Random(seed)
    chosen: list[Sample] = []
    for samples in by_graph.values():
        chosen += numbers.sample(samples, (len(samples) + 1) // 2)
    return sorted(chosen, key=lambda sample: sample.call.index)


def _bound(program: RunnableProgram, given: Any) -> list[dict[str, Any]]:
    """Calls of a user as arguments by name."""
    if isinstance(given, (str, Path)):
        given = _calls_of_run(given, program.contents.recording)
    elif callable(getattr(given, "kept_calls", None)):
        given = given.kept_calls()
    if isinstance(given, (Recording, bytes)) or not isinstance(given, Iterable):
        raise UsageError(
            f"calibration is {type(given).__name__}, which has no calls with values.",
            slug="no-calibration",
            hint=(
                "Give calls, each (args, kwargs) or a dict of arguments by name, an observer, or the"
                " folder of `onlooker run --keep-values`."
            ),
        )
    calls = [as_call(call, index) for index, call in enumerate(given)]
    if not calls:
        raise ObservationError(
            "There are no calls to calibrate on.", slug="no-calls", hint="Give one at least."
        )
    return [program.dispatcher.bound(args, kwargs) for args, kwargs in calls]


def _calls_of_run(folder: str | Path, recording: Recording) -> list[dict[str, Any]]:
    """The calls whose values ``onlooker run --keep-values`` kept in a folder: those of the method that
    the program was watched at, where the folder has several.

    Its reader stands above this module, and is looked up by its public name.
    """
    kept_calls = importlib.import_module("onlooker").kept_calls
    try:
        calls: list[dict[str, Any]] = kept_calls(folder)
    except UsageError as error:
        if error.slug != "no-such-entry":
            raise
        name = recording.model.rpartition(".")[2]
        method = "" if recording.method == "forward" else f".{recording.method}"
        calls = kept_calls(folder, f"{name}{method}")
    return calls


def _routed(
    program: RunnableProgram, calls: Iterable[dict[str, Any]]
) -> dict[str, list[list[Any]]]:
    """The inputs of each graph, in the calls that it takes."""
    found: dict[str, list[list[Any]]] = {graph.name: [] for graph in program.contents.graphs}
    for arguments in calls:
        taken = program.dispatcher.taken(arguments)
        if taken is not None:
            graph, inputs = taken
            found[graph.name].append([*with_float_tensors(inputs)])
    return found


def calls_calibrated_on(graphs: Iterable[Graph]) -> frozenset[int]:
    """The numbers of the watched calls that some graph was calibrated on.

    >>> from types import SimpleNamespace
    >>> graph = SimpleNamespace(options={"precision": "int8-static", "calibration": "watched calls 0, 3"})
    >>> sorted(calls_calibrated_on([graph]))
    [0, 3]
    """
    found: set[int] = set()
    for graph in graphs:
        text = graph.options.get(CALIBRATION, "")
        if text.startswith(_WATCHED):
            found.update(int(number) for number in text.removeprefix(_WATCHED).split(","))
    return frozenset(found)
