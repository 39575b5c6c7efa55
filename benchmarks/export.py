"""Our exports, with a named symbol per size, beside ``Dim.AUTO`` on every axis of the same example.

    python benchmarks/export.py [--quick] [--json FILE]

Two ratios: the seconds of ``torch.export.export``, and the time that the guards of
``program.module()`` take in a call. Below 1 the named export is quicker.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from exports import Export, exports_of
from frame import Figure, main, seconds_of
from subjects import subjects

from onlooker.observing.store import copy_leaves


def all_automatic(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``Dim.AUTO`` for every axis and every int."""
    auto = torch.export.Dim.AUTO
    return {
        name: dict.fromkeys(range(value.ndim), auto) if isinstance(value, torch.Tensor) else auto
        for name, value in inputs.items()
    }


def guard_microseconds(
    program: torch.export.ExportedProgram, inputs: Mapping[str, Any], rounds: int
) -> float:
    """What the guards of one call take: the median of runs of them alone, on what the module
    gives them.
    """
    module: Any = program.module()
    guards, given = module._guards_fn, list[tuple[Any, ...]]()
    handle = guards.register_forward_pre_hook(lambda _, args: given.append(args))
    with torch.no_grad():
        module(**dict(zip(inputs, copy_leaves(tuple(inputs.values())), strict=True)))
        handle.remove()
        found = []
        for _ in range(rounds):
            start = time.perf_counter_ns()
            guards(*given[0])
            found.append((time.perf_counter_ns() - start) / 1000)
    return statistics.median(found)


def compared(export: Export, rounds: int, *, named_first: bool) -> tuple[float, float, float]:
    """Seconds with names over seconds with AUTO, and the microseconds of the guards of both."""
    shapes = {"dynamic_shapes": all_automatic(export.inputs)}
    automatic = export.again(**shapes)
    runs = [export.again, lambda: export.again(**shapes)]
    times = {run: seconds_of(run) for run in (runs if named_first else reversed(runs))}
    assert export.program is not None
    ours = guard_microseconds(export.program, export.inputs, rounds)
    theirs = guard_microseconds(automatic, export.inputs, rounds)
    return times[runs[0]] / times[runs[1]], ours, theirs


def figures(quick: bool) -> Iterator[Figure]:
    """Two per graph, then the medians."""
    seconds, guards = [], []
    for subject in subjects(quick):
        for number, export in enumerate(exports_of(subject.module, subject.watch)):
            name = f"{subject.name}, graph {number}" if number else subject.name
            try:
                ratio, ours, theirs = compared(
                    export, 50 if quick else 200, named_first=len(seconds) % 2 == 0
                )
            except Exception as error:
                note = (
                    f"Dim.AUTO is refused: {type(error).__name__}:"
                    f" {str(error).strip().splitlines()[0][:80]}"
                )
                yield Figure(f"named / AUTO, {name}", float("nan"), "x", note=note)
                continue
            seconds.append(ratio)
            guards.append(ours / max(theirs, 0.1))
            yield Figure(f"seconds of torch.export, named / AUTO, {name}", ratio, "x")
            note = f"{ours:.0f} and {theirs:.0f} microseconds"
            yield Figure(f"guards of a call, named / AUTO, {name}", guards[-1], "x", note=note)
    yield Figure(
        f"seconds of torch.export, named / AUTO, median of {len(seconds)}",
        statistics.median(seconds),
        "x",
    )
    yield Figure(
        f"guards of a call, named / AUTO, median of {len(guards)}", statistics.median(guards), "x"
    )


if __name__ == "__main__":
    sys.exit(main(__doc__ or "", figures))
