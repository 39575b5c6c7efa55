"""The numbers on positions that the runs of a model, or its graphs, alone have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from ..thresholds import GREATEST_TRIED
from .graph_runs import GraphRun
from .operators_of_runs import numbers_of_positions, places_taken
from .way_runs import RecordedRun

__all__ = ["PositionNumbers"]


@dataclass(frozen=True)
class PositionNumbers:
    """The numbers on positions that runs or graphs alone have.

    A loop over the rows of a block of 64 has all numbers up to 63. An axis of a constant length has
    the same places at every size, and what stands there is all there once the axis is full: for
    these numbers there is its length.
    """

    of_runs: set[int] = field(default_factory=set)
    of_graphs: set[int] = field(default_factory=set)

    @property
    def all(self) -> set[int]:
        """The numbers of runs and those of graphs."""
        return self.of_runs | self.of_graphs

    def add(self, run: RecordedRun, of_graph: GraphRun) -> None:
        """Notes the numbers of a run and of a graph at the same sizes."""
        one, other = numbers_of_positions(run.steps), of_graph.positions
        self.of_runs.update(_unexplained(run, one - other, places_taken(run.steps)))
        self.of_graphs.update(_unexplained(run, other - one, of_graph.places))
        self.of_runs.update(run.symbols.pieces - of_graph.pieces)
        self.of_graphs.update(of_graph.pieces - run.symbols.pieces)


def _unexplained(
    run: RecordedRun, alone: Counter[int], taken: Counter[tuple[int, int]]
) -> Iterator[int]:
    """Yields the numbers that no size of a run explains; for places of an axis its constant length."""
    for number, count in alone.items():
        if run.symbols.explains(number):
            continue
        lengths = [n for n in run.symbols.constants if n <= GREATEST_TRIED and taken[number, n]]
        is_constant = sum(taken[number, n] for n in lengths) >= count
        yield from lengths if is_constant else [number]
