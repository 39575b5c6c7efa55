"""The experiments with the model, as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import overload

from rich.console import RenderableType

from ..core.experiment import Experiment
from ..core.plan import Plan
from .text import PrintedTables, table_of

__all__ = ["ExperimentRow", "Experiments", "experiments_of"]

_COLUMNS = ("plan", "changed", "claim", "finding", "detail", "label")


@dataclass(frozen=True, slots=True)
class ExperimentRow:
    """One experiment: the ``plan`` that it belongs to, the axes that were ``changed`` with their
    sizes, the ``claim`` that was tested ("" where it is that these sizes may be), the ``finding``,
    its ``detail``, and the ``label`` by which the evidence of a relation names it.
    """

    plan: str
    changed: tuple[str, ...]
    claim: str
    finding: str
    detail: str
    label: str


@dataclass(frozen=True, slots=True)
class Experiments(PrintedTables, Sequence[ExperimentRow]):
    """All experiments, in their order. ``print`` shows a table, and a notebook too."""

    rows: tuple[ExperimentRow, ...]

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> ExperimentRow: ...

    @overload
    def __getitem__(self, index: slice) -> Experiments: ...

    def __getitem__(self, index: int | slice) -> ExperimentRow | Experiments:
        return Experiments(self.rows[index]) if isinstance(index, slice) else self.rows[index]

    def __iter__(self) -> Iterator[ExperimentRow]:
        return iter(self.rows)

    def to_dict(self) -> list[dict[str, object]]:
        """One dict a row, for JSON and for ``pandas.DataFrame``."""
        return [{**asdict(row), "changed": list(row.changed)} for row in self.rows]

    def tables(self, *, full: bool = False) -> RenderableType:
        """The table, for a console of rich: every experiment is a row in any case."""
        return table_of(f"{len(self.rows)} experiments", _COLUMNS, map(_cells, self.rows))

    def __repr__(self) -> str:
        found: dict[str, int] = {}
        for row in self.rows:
            found[row.finding] = found.get(row.finding, 0) + 1
        parts = ", ".join(f"{count} {finding}" for finding, count in found.items())
        return f"<Experiments: {parts or 'none'}>"


def experiments_of(plans: Sequence[Plan]) -> Experiments:
    """The experiments of some plans, each once: plans of one search share theirs."""
    known: set[Experiment] = set()
    rows = []
    for plan in plans:
        for experiment in plan.probes:
            if experiment not in known:
                known.add(experiment)
                rows.append(_row(plan.name, experiment))
    return Experiments(tuple(rows))


def _row(plan: str, experiment: Experiment) -> ExperimentRow:
    sizes = zip(experiment.axes, experiment.sizes, strict=True)
    return ExperimentRow(
        plan,
        tuple(f"{axis} = {size}" for axis, size in sizes),
        experiment.claim,
        str(experiment.finding.kind),
        experiment.finding.detail,
        experiment.label,
    )


def _cells(row: ExperimentRow) -> tuple[str, ...]:
    return (row.plan, ", ".join(row.changed), row.claim, row.finding, row.detail, row.label)
