"""The reports of several programs in one."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..core.verdict import Tallies
from .report import Report
from .text import PrintedTables, table_of, verdict_line

__all__ = ["Reports"]


@dataclass(frozen=True, slots=True)
class Reports(PrintedTables):
    """The report of each program by its name, and one verdict over all."""

    reports: tuple[tuple[str, Report], ...]

    @property
    def tallies(self) -> Tallies:
        """The tally of each program."""
        return Tallies(tuple((name, report.tally) for name, report in self.reports))

    @property
    def verified(self) -> bool:
        """True when there is a program, and every one is verified."""
        return self.tallies.verified

    @property
    def verdict(self) -> str:
        """A sentence that says whether all programs are verified: that of the tallies."""
        return self.tallies.verdict

    def to_dict(self) -> dict[str, object]:
        """The reports as JSON takes them."""
        return {
            "schema": 1,
            "verdict": self.verdict,
            "programs": {name: report.to_dict() for name, report in self.reports},
        }

    def tables(self, *, full: bool = False) -> RenderableType:
        """The reports for a console of rich: the verdict, a row for each, then one after the
        other.
        """
        verdict = verdict_line(self.verdict, self.verified)
        parts: list[RenderableType] = [verdict, _summary(self.reports)]
        for name, report in self.reports:
            parts += [Text(), Text(f"{name}:", style="bold"), report.tables(full=full)]
        return Group(*parts, Text())


def _summary(reports: tuple[tuple[str, Report], ...]) -> Table:
    heads = ("name", "method", "graphs", "passed", "of", "verified")
    rows = [
        (
            name,
            f"{report.model}.{report.method}",
            str(len(report.graphs)),
            str(report.tally.passed),
            str(report.tally.total),
            "yes" if report.verified else Text("no", style="red"),
        )
        for name, report in reports
    ]
    return table_of("all programs", heads, rows)
