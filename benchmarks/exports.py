"""The exports of torch that a pipeline makes, as they can be made again: what a user would write
by hand.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.fx.experimental._config as symbolic_settings
from frame import stopwatch

from onlooker import InputObserver, Program
from onlooker.lab import stages


@dataclass(slots=True)
class Export:
    """One call of ``torch.export.export``: what it was given, what it gave (None when it
    raised), and seconds.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    oblivious: bool
    program: torch.export.ExportedProgram | None = None
    seconds: float = 0.0

    @property
    def inputs(self) -> dict[str, Any]:
        """The example of the export, by name."""
        found: dict[str, Any] = self.args[2]
        return found

    def again(self, **changes: Any) -> torch.export.ExportedProgram:
        """The same export, bare; ``dynamic_shapes`` may be others."""
        with torch.no_grad(), symbolic_settings.patch(backed_size_oblivious=self.oblivious):  # type: ignore[attr-defined]
            return _EXPORT(*self.args, **{**self.kwargs, **changes})


_EXPORT: Callable[..., torch.export.ExportedProgram] = torch.export.export


@contextlib.contextmanager
def exports_seen() -> Iterator[list[Export]]:
    """The exports that are made inside the block."""
    found: list[Export] = []

    def export(*args: Any, **kwargs: Any) -> torch.export.ExportedProgram:
        made = Export(args, kwargs, symbolic_settings.backed_size_oblivious)
        found.append(made)
        start = time.process_time()
        try:
            made.program = _EXPORT(*args, **kwargs)
        finally:
            made.seconds = time.process_time() - start
        return made.program

    torch.export.export = export
    try:
        yield found
    finally:
        torch.export.export = _EXPORT


@dataclass(slots=True)
class Run:
    """One pipeline: its program, all exports in it, and the seconds of the processor that it
    took.
    """

    program: Program
    exports: list[Export]
    seconds: float = 0.0
    shares: dict[str, float] = field(default_factory=dict)

    @property
    def of_graphs(self) -> list[Export]:
        """The exports that became graphs, one per graph."""
        artifacts = {id(graph.artifact) for graph in self.program.graphs}
        return [export for export in self.exports if id(export.program) in artifacts]

    @property
    def seconds_refused(self) -> float:
        """The seconds of the exports that torch refused."""
        return sum(export.seconds for export in self.exports if export.program is None)


@contextlib.contextmanager
def stages_by_processor() -> Iterator[None]:
    """Inside the block a report gives the seconds of the processor per stage, and not those of
    the clock.
    """
    with mock.patch.object(stages, "time", SimpleNamespace(perf_counter=time.process_time)):
        yield


def pipeline(module: torch.nn.Module, watch: Callable[[], object]) -> Run:
    """Observe, infer, probe, export, verify: all that a user does."""
    observer = InputObserver()
    with exports_seen() as exports, stages_by_processor(), stopwatch() as seconds:
        with observer(module):
            watch()
        program = observer.export()
        program.verify()
    stages = dict(program.report.stages)
    return Run(
        program,
        exports,
        seconds[0],
        {name: value / sum(stages.values()) for name, value in stages.items()},
    )


def exports_of(module: torch.nn.Module, watch: Callable[[], object]) -> list[Export]:
    """The exports that became graphs, each warm: what was imported and compiled for them is
    there.
    """
    observer = InputObserver()
    with exports_seen() as exports:
        with observer(module):
            watch()
        program = observer.export()
    return Run(program, exports).of_graphs
