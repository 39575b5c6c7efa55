"""The calls of a recording: which arguments came, how often, and in which sizes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.text import Text

from ..core.drawing.alike import counted, folded_rows
from ..core.leaves import LeafRow, leaf_rows
from ..core.recording import Recording
from .text import PrintedTables, made_inside, table_of

__all__ = ["CallsReport", "LeafRow", "calls_report", "surroundings_of"]


@dataclass(frozen=True, slots=True)
class CallsReport(PrintedTables):
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

    def tables(self, *, full: bool = False) -> RenderableType:
        """The calls for a console of rich."""
        title = f"{counted(self.total, 'call')} of {self.model}.{self.method}"
        heads = ("input", "kind", "sizes that were seen", "calls")
        cells = [row.cells for row in self.leaves]
        return Group(
            table_of(title, heads, cells if full else folded_rows(cells)),
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
    """Returns the surroundings of the calls in words, each with the number of calls that were made
    there.

    Calls of which nothing was noted are left out.
    """
    found: Counter[str] = Counter()
    for call in recording.calls:
        if call.surroundings is not None:
            found[str(call.surroundings)] += call.count
    return tuple(found.items())
