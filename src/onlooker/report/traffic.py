"""The check of new calls against a program: data that prints as a table and goes into JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..core.alike import folded_rows
from ..core.traffic import CheckedCall
from .text import as_text

__all__ = ["BreachRow", "Conformity"]

_MOST_SHOWN = 4


@dataclass(frozen=True, slots=True)
class BreachRow:
    """One way in which calls fall outside: the argument or axis, what it has to be, what it was,
    and how often.
    """

    graph: str
    kind: str
    where: str
    expected: str
    got: tuple[str, ...]
    calls: tuple[int, ...]
    count: int


@dataclass(frozen=True, slots=True)
class Conformity:
    """New calls against a program: which graph serves each, which none serves, by which axis or
    argument.
    """

    program: str
    calls: tuple[CheckedCall, ...] = ()

    @property
    def total(self) -> int:
        """The number of calls."""
        return sum(call.count for call in self.calls)

    @property
    def outside(self) -> int:
        """The number of calls that no graph serves."""
        return sum(call.count for call in self.calls if not call.holds)

    @property
    def holds(self) -> bool:
        """True when there are calls, and a graph serves every one."""
        return self.total > 0 and self.outside == 0

    @property
    def served(self) -> tuple[tuple[str, int], ...]:
        """Per graph the number of calls that it serves."""
        counts: dict[str, int] = {}
        for call in self.calls:
            if call.holds:
                counts[call.graph] = counts.get(call.graph, 0) + call.count
        return tuple(counts.items())

    @property
    def breaches(self) -> tuple[BreachRow, ...]:
        """What keeps calls outside, the most frequent first."""
        found: dict[tuple[str, str, str, str], list[tuple[str, CheckedCall]]] = {}
        for call in self.calls:
            for breach in call.breaches:
                key = (call.graph, breach.kind.value, breach.where, breach.expected)
                found.setdefault(key, []).append((breach.got, call))
        rows = [
            BreachRow(
                *key,
                tuple(dict.fromkeys(got for got, _ in seen)),
                tuple(call.index for _, call in seen),
                sum(call.count for _, call in seen),
            )
            for key, seen in found.items()
        ]
        return tuple(sorted(rows, key=lambda row: -row.count))

    @property
    def verdict(self) -> str:
        """One sentence: how many calls fall outside."""
        calls = f"{self.total} {'call' if self.total == 1 else 'calls'}"
        return (
            f"all of {calls} are served"
            if self.holds
            else f"{self.outside} of {calls} fall outside"
        )

    def to_dict(self) -> dict[str, object]:
        """The check as JSON takes it."""
        return {
            "schema": 1,
            "program": self.program,
            "holds": self.holds,
            "total": self.total,
            "outside": self.outside,
            "served": dict(self.served),
            "breaches": [
                {
                    "graph": row.graph,
                    "kind": row.kind,
                    "where": row.where,
                    "expected": row.expected,
                    "got": list(row.got),
                    "calls": list(row.calls),
                    "count": row.count,
                }
                for row in self.breaches
            ],
        }

    def text(self, *, full: bool = False) -> str:
        """The check as text, as wide as the terminal; ``full`` gives each item of a list a row
        of its own.
        """
        return as_text(self.tables(full=full))

    def __str__(self) -> str:
        return self.text()

    def __rich__(self) -> RenderableType:
        return self.tables()

    def tables(self, *, full: bool = False) -> RenderableType:
        """The check for a console of rich."""
        parts: list[RenderableType] = [Text(f"calls against {self.program}", style="bold")]
        parts += [Text(f"  {name} serves {count}") for name, count in self.served]
        if self.breaches:
            parts.append(_table(self.breaches, full))
        parts.append(Text(self.verdict, style="bold green" if self.holds else "bold red"))
        return Group(*parts)


def _table(rows: Sequence[BreachRow], full: bool) -> Table:
    table = Table(title="outside", title_justify="left")
    for name in ("calls", "argument or axis", "has to be", "was", "why"):
        table.add_column(name, overflow="fold")
    cells = [_cells(row) for row in rows]
    for row in cells if full else folded_rows(cells):
        table.add_row(*map(Text, row))
    return table


def _cells(row: BreachRow) -> tuple[str, ...]:
    more = len(row.got) - _MOST_SHOWN
    shown = (*row.got[:_MOST_SHOWN], *([f"{more} more"] if more > 0 else []))
    why = f"{row.kind} ({row.graph})" if row.graph else row.kind
    return str(row.count), row.where, row.expected, "; ".join(shown), why
