"""The reports of several programs in one."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from .report import Report
from .text import as_text

__all__ = ["Reports"]


@dataclass(frozen=True, slots=True)
class Reports:
    """The report of each program by its name, and one verdict over all."""

    reports: tuple[tuple[str, Report], ...]

    @property
    def verified(self) -> bool:
        """True when there is a program, and every one is verified."""
        return bool(self.reports) and all(report.verified for _, report in self.reports)

    @property
    def verdict(self) -> str:
        """``verified``, or in words which programs are not, and why."""
        if self.verified:
            return "verified"
        failed = [f"{name} is {r.verdict}" for name, r in self.reports if not r.verified]
        return f"not verified: {'; '.join(failed) or 'there is no program'}"

    def to_dict(self) -> dict[str, object]:
        """The reports as JSON takes them."""
        return {
            "schema": 1,
            "verdict": self.verdict,
            "programs": {name: report.to_dict() for name, report in self.reports},
        }

    def text(self, *, full: bool = False) -> str:
        """The reports as text, as wide as the terminal; ``full`` gives each item of a list a row
        of its own.
        """
        return as_text(self.tables(full=full))

    def tables(self, *, full: bool = False) -> RenderableType:
        """The reports for a console of rich: one after the other, and then a row for each."""
        parts: list[RenderableType] = []
        for name, report in self.reports:
            parts += [Text(f"{name}:", style="bold"), report.tables(full=full), Text()]
        style = "bold green" if self.verified else "bold red"
        verdict = Text.assemble("verdict: ", (self.verdict, style))
        return Group(*parts, _summary(self.reports), verdict)

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
