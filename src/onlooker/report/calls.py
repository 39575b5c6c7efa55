"""The calls of a recording: which arguments came, how often, and in which sizes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..core.alike import folded_rows
from ..core.leaves import LeafRow, leaf_rows
from ..core.recording import Recording
from .text import as_text, made_inside

__all__ = ["CallsReport", "LeafRow", "calls_report", "surroundings_of"]


@dataclass(frozen=True, slots=True)
class CallsReport:
    """The calls of one method, leaf by leaf."""

    model: str
    method: str
    total: int
    leaves: tuple[LeafRow, ...]
    missed: tuple[str, ...] = ()
    surroundings: tuple[tuple[str, int], ...] = ()

    def to_dict(self) -> dict[str, object]:
        """The calls as JSON takes them."""
        return {
            "schema": 1,
            "model": self.model,
            "method": self.method,
            "total": self.total,
            "leaves": [
                {
                    "path": row.path,
                    "kinds": list(row.kinds),
                    "sizes": [list(s) for s in row.sizes],
                    "calls": row.count,
                }
                for row in self.leaves
            ],
            "missed": list(self.missed),
            "surroundings": dict(self.surroundings),
        }

    def text(self, *, full: bool = False) -> str:
        """The calls as text, as wide as the terminal; ``full`` gives each item of a list a row
        of its own.
        """
        return as_text(self.tables(full=full))

    def __str__(self) -> str:
        return self.text()

    def __rich__(self) -> RenderableType:
        return self.tables()

    def tables(self, *, full: bool = False) -> RenderableType:
        """The calls for a console of rich."""
        calls = f"{self.total} {'call' if self.total == 1 else 'calls'}"
        table = Table(title=f"{calls} of {self.model}.{self.method}", title_justify="left")
        for name in ("input", "kind", "sizes that were seen", "calls"):
            table.add_column(name, overflow="fold")
        cells = [row.cells for row in self.leaves]
        for row in cells if full else folded_rows(cells):
            table.add_row(*map(Text, row))
        return Group(
            table,
            *(Text(f"  {text}", style="dim") for text in made_inside(self.surroundings)),
            *(Text(f"  a call was not recorded: {text}", style="dim") for text in self.missed),
        )


def calls_report(recording: Recording) -> CallsReport:
    """The report of a recording."""
    return CallsReport(
        recording.model,
        recording.method,
        len(recording),
        leaf_rows(recording.calls),
        recording.missed,
        surroundings_of(recording),
    )


def surroundings_of(recording: Recording) -> tuple[tuple[str, int], ...]:
    """What stood around the calls, in words, each with the number of calls that were made there.

    Calls of which nothing was noted are left out.
    """
    found: Counter[str] = Counter()
    for call in recording.calls:
        if call.surroundings is not None:
            found[str(call.surroundings)] += call.count
    return tuple(found.items())
