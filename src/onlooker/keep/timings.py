"""How long everything took, in one field of a folder: all else of two runs on the same calls and
model is the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..core.recording import Recording
from ..disk.text import damaged
from ..trace.graph import Graph

__all__ = [
    "taken_timings",
    "timed_graphs",
    "timed_recording",
    "untimed_recording",
    "untimed_report",
]


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
