"""The table of a sweep: data that prints, and goes into JSON and HTML."""

from __future__ import annotations

import collections
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from ..core.drawing.alike import counted
from ..report.text import PrintedTables, table_of

__all__ = ["GOOD", "Row", "Swept"]

#: what became of a job: its name, status, seconds and message, and what its function returned
Row = Mapping[str, Any]
#: the statuses with which a job has done what it should
GOOD = frozenset({"ok", "verified", "exported"})
_HEADS = ("job", "status", "seconds", "graphs", "checks", "message")
_LONGEST = 160


@dataclass(frozen=True, slots=True)
class Swept(PrintedTables):
    """The jobs of a sweep after it: a row for each, in the order in which they were given.

    >>> swept = Swept(({"name": "a", "status": "verified"}, {"name": "b", "status": "timeout"}))
    >>> swept.holds, swept.counts, swept.verdict
    (False, {'verified': 1, 'timeout': 1}, '1 of 2 jobs: 1 verified, 1 timeout')
    """

    rows: tuple[Row, ...]

    @property
    def holds(self) -> bool:
        """True when there are jobs, and every one has done what it should."""
        return bool(self.rows) and all(row["status"] in GOOD for row in self.rows)

    @property
    def counts(self) -> dict[str, int]:
        """The number of jobs of each status."""
        return dict(collections.Counter(str(row["status"]) for row in self.rows))

    @property
    def verdict(self) -> str:
        """One sentence: how many jobs have done what they should, and the others."""
        good = sum(row["status"] in GOOD for row in self.rows)
        listed = ", ".join(f"{count} {status}" for status, count in self.counts.items())
        return f"{good} of {counted(len(self.rows), 'job')}: {listed or 'none'}"

    def to_dict(self) -> dict[str, object]:
        """The table as JSON takes it."""
        rows = [dict(row) for row in self.rows]
        return {"schema": 1, "holds": self.holds, "counts": self.counts, "rows": rows}

    def tables(self, *, full: bool = False) -> RenderableType:
        """The table for a console of rich: jobs that have failed first; ``full`` has all of them, and
        whole messages.
        """
        order = sorted(self.rows, key=lambda row: row["status"] in GOOD)
        cells = [_cells(row, None if full else _LONGEST) for row in order]
        style = "bold green" if self.holds else "bold red"
        return Group(table_of(None, _HEADS, cells), Text(self.verdict, style=style))

    def html(self) -> str:
        """The table as one HTML file."""
        head = "".join(f"<th>{escape(name)}</th>" for name in _HEADS)
        lines = [
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in _cells(row)) + "</tr>"
            for row in self.rows
        ]
        body = "\n".join(lines)
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>sweep</title>\n'
            "<style>body{font:14px sans-serif}td,th{text-align:left;padding:2px 8px;"
            "vertical-align:top}tr:nth-child(even){background:#f3f3f3}</style></head>\n"
            f"<body><p>{escape(self.verdict)}</p>\n<table><thead><tr>{head}</tr></thead>\n"
            f"<tbody>{body}</tbody></table></body></html>\n"
        )


def _cells(row: Row, longest: int | None = None) -> tuple[str, ...]:
    status = f"{row['status']}, kept" if row.get("kept") else str(row["status"])
    message = str(row.get("message", ""))
    if longest is not None and len(message) > longest:
        message = f"{message[:longest]}..."
    rest = (str(row.get(name, "")) for name in ("seconds", "graphs", "checks"))
    return str(row["name"]), status, *rest, message
