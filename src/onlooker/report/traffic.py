"""The check of new calls against a program: data that prints as a table and goes into JSON."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.text import Text

from ..core.drawing.alike import counted, first_few, folded_rows
from ..core.traffic import CheckedCall
from .text import PrintedTables, table_of

__all__ = ["Conformity", "ViolationRow"]

_MOST_SHOWN = 4


@dataclass(frozen=True, slots=True)
class ViolationRow:
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
class Conformity(PrintedTables):
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
    def violations(self) -> tuple[ViolationRow, ...]:
        """The reasons that keep calls outside, the most frequent first."""
        found: dict[tuple[str, str, str, str], list[tuple[str, CheckedCall]]] = {}
        for call in self.calls:
            for violation in call.violations:
                key = (call.graph, violation.kind.value, violation.where, violation.expected)
                found.setdefault(key, []).append((violation.got, call))
        rows = [
            ViolationRow(
                *key,
                tuple(dict.fromkeys(got for got, _ in seen)),
                tuple(call.index for _, call in seen),
                sum(call.count for _, call in seen),
            )
            for key, seen in found.items()
        ]
        return tuple(sorted(rows, key=lambda row: -row.count))

    #: the name of 0.1
    breaches = violations

    @property
    def verdict(self) -> str:
        """One sentence: how many calls fall outside."""
        calls = counted(self.total, "call")
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
                for row in self.violations
            ],
        }

    def tables(self, *, full: bool = False) -> RenderableType:
        """The check for a console of rich."""
        parts: list[RenderableType] = [Text(f"calls against {self.program}", style="bold")]
        parts += [Text(f"  {name} serves {count}") for name, count in self.served]
        if self.violations:
            cells = [_cells(row) for row in self.violations]
            heads = ("calls", "argument or axis", "has to be", "was", "why")
            parts.append(table_of("outside", heads, cells if full else folded_rows(cells)))
        parts.append(Text(self.verdict, style="bold green" if self.holds else "bold red"))
        return Group(*parts)


def _cells(row: ViolationRow) -> tuple[str, ...]:
    shown = first_few(row.got, _MOST_SHOWN)
    why = f"{row.kind} ({row.graph})" if row.graph else row.kind
    return str(row.count), row.where, row.expected, "; ".join(shown), why
