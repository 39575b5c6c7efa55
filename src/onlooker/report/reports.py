"""The reports of several programs in one."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..core.verdict import Tallies
from .brief import verdict_line
from .report import Report
from .text import as_text

__all__ = ["Reports"]


@dataclass(frozen=True, slots=True)
class Reports:
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
        """Whether all programs are verified, in a sentence: that of the tallies."""
        return self.tallies.verdict

    def to_dict(self) -> dict[str, object]:
        """The reports as JSON takes them."""
        return {
            "schema": 1,
            "verdict": self.verdict,
            "programs": {name: report.to_dict() for name, report in self.reports},
        }

    def text(self, *, full: bool = False) -> str:
        """The reports as text, as wide as the terminal: short, or ``full``, with all evidence."""
        return as_text(self.tables(full=full))

    def tables(self, *, full: bool = False) -> RenderableType:
        """The reports for a console of rich: the verdict, a row for each, then one after the
        other.
        """
        verdict = verdict_line(self.verdict, self.verified)
        parts: list[RenderableType] = [verdict, _summary(self.reports)]
        for name, report in self.reports:
            parts += [Text(), Text(f"{name}:", style="bold"), report.tables(full=full)]
        return Group(*parts, Text())

    def __str__(self) -> str:
        return self.text()

    def __rich__(self) -> RenderableType:
        return self.tables()


def _summary(reports: tuple[tuple[str, Report], ...]) -> Table:
    table = Table(title="all programs", title_justify="left")
    for column in ("name", "method", "graphs", "passed", "of", "verified"):
        table.add_column(column, overflow="fold")
    for name, report in reports:
        table.add_row(
            name,
            Text(f"{report.model}.{report.method}"),
            str(len(report.graphs)),
            str(report.tally.passed),
            str(report.tally.total),
            "yes" if report.verified else Text("no", style="red"),
        )
    return table
