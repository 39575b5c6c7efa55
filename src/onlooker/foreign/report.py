"""The report of an export, for readers and for JSON: its axes, its faults, and the trials."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..core.drawing.alike import first_few, folded, folded_rows
from ..core.verdict import Tally
from ..report.text import PrintedTables, as_text, table_of, verdict_line
from .axes import PLACES
from .findings import ExportFinding, Kind

__all__ = ["UNREADABLE", "ComparedAxis", "ExportReport"]

_MOST_FAILURES = 6
#: what is wrong with axes, and not with values, inputs or outputs
_OF_AXES = (Kind.SPECIALIZED, Kind.NARROW, Kind.REFUSED, Kind.WRONG, Kind.TIED)
_REPAIR = "# the export that would be right, where `model` is the model in evaluation mode:"
#: what the verdict says of a file whose graph no reader shows
UNREADABLE = "the graph of this file cannot be read"


@dataclass(frozen=True, slots=True)
class ComparedAxis:
    """One axis of an input: what the model takes, what the file declares, and what became of each
    place (at 0, 1, min, max and unseen sizes; empty for an axis that follows from others).
    """

    graph: str
    axis: str
    asked: str
    obtained: str
    held: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExportReport(PrintedTables):
    """The comparison of an export with the model.

    ``findings`` name what is wrong by axis, input or output, ``remarks`` what was not found out,
    ``tally`` has every trial: the watched calls, other sizes, other values. ``is_readable`` is False
    for a file that does not show its graph: its numbers and tables are not known then. ``repair`` is
    the export that would be right, as code to be pasted where ``model`` is the model: its
    ``dynamic_shapes`` and its example. It is empty where the axes of the file are not what is wrong.
    """

    model: str
    kind: str
    axes: tuple[ComparedAxis, ...]
    findings: tuple[ExportFinding, ...]
    tally: Tally
    remarks: tuple[str, ...] = ()
    is_readable: bool = True
    repair: str = ""

    def __repr__(self) -> str:
        return f"<ExportReport of {self.model} ({self.kind}): {self.verdict}>"

    @property
    def holds(self) -> bool:
        """True when every trial holds, unseen ones among them, and nothing is found wrong."""
        return self.tally.verified and not self.failures

    @property
    def failures(self) -> tuple[ExportFinding, ...]:
        """The findings that are failures."""
        return tuple(finding for finding in self.findings if finding.is_failure)

    @property
    def is_repaired_by_axes(self) -> bool:
        """True where sizes are wrong, which other ``dynamic_shapes`` and another example may mend."""
        return any(finding.kind in _OF_AXES for finding in self.failures)

    @property
    def verdict(self) -> str:
        """``holds``, with what no reader of the file shows; or in words why not."""
        if self.holds:
            return "holds" if self.is_readable else f"holds, though {UNREADABLE}"
        if not self.tally.total:
            return "does not hold: nothing could be tried"
        if self.tally.failed:
            return f"does not hold: {self.tally.failed} of {self.tally.total} trials failed"
        if self.failures:
            return f"does not hold: {self.failures[0].where}"
        return "not known to hold: only observed calls were tried"

    def to_dict(self) -> dict[str, object]:
        """The report as JSON takes it."""
        return {
            "schema": 1,
            "model": self.model,
            "kind": self.kind,
            "holds": self.holds,
            "verdict": self.verdict,
            "axes": [
                {
                    "graph": row.graph,
                    "axis": row.axis,
                    "asked": row.asked,
                    "obtained": row.obtained,
                    "held": dict(zip(PLACES, row.held, strict=False)),
                }
                for row in self.axes
            ],
            "findings": [
                {
                    "kind": found.kind.value,
                    "where": found.where,
                    "text": found.text,
                    "failure": found.is_failure,
                }
                for found in self.findings
            ],
            "trials": {"passed": self.tally.passed, "total": self.tally.total},
            "failed": [
                {"label": check.label, "outcome": check.outcome.value, "note": check.cause}
                for check in self.tally.checks
                if not check.passed
            ],
            "remarks": list(self.remarks),
            "repair": self.repair,
        }

    def tables(self, *, full: bool = False) -> RenderableType:
        """The report for a console of rich."""
        parts: list[RenderableType] = [
            Text(f"onlooker report of an export ({self.kind}) of {self.model}", style="bold")
        ]
        parts += [self._table(graph, full) for graph in dict.fromkeys(r.graph for r in self.axes)]
        parts += [Text(f"  {text}") for text in self._lines(full)]
        return Group(*parts, verdict_line(self.verdict, self.holds))

    def _table(self, graph: str, full: bool) -> Table:
        cells = [
            (row.axis, row.asked, row.obtained, *(row.held or ("",) * len(PLACES)))
            for row in self.axes
            if row.graph == graph
        ]
        heads = ("axis", "asked", "obtained", *PLACES)
        return table_of(Text(graph), heads, cells if full else folded_rows(cells))

    def _lines(self, full: bool) -> Sequence[str]:
        found = [
            f"{'WRONG' if finding.is_failure else 'note'}: {finding}" for finding in self.findings
        ]
        failed = [
            f"{check.outcome.value}: {check.label}: {check.cause}"
            for check in self.tally.checks
            if not check.passed
        ]
        lines = [
            *found,
            *(f"tried: {text}" for text in (self.tally.summary,) if text),
            *first_few(failed, _MOST_FAILURES, "... and {} more"),
            *self.remarks,
        ]
        return lines if full else folded(lines)

    @property
    def repair_text(self) -> str:
        """The repair as it is printed below the report; empty without one."""
        return f"\n\n{_REPAIR}\n{self.repair.rstrip()}" if self.repair else ""

    def text(self, *, full: bool = False) -> str:
        """The report as text, as wide as the terminal, with the repair below it."""
        return f"{as_text(self.tables(full=full))}{self.repair_text}"
