"""Tables of a report, for a terminal."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Iterable, Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..core.drawing.alike import counted, first_few, folded, folded_rows
from ..core.verdict import Tally
from .data import AxisRow, GraphReport

__all__ = ["PrintedTables", "as_text", "made_inside", "render", "table_of", "verdict_line"]

_MOST_FAILURES = 8
#: columns of what goes into no terminal
_WIDTH = 118
#: columns of a notebook, in which no line of a short report is cut
_WIDEST = 240


class PrintedTables:
    """Prints tables in a terminal, as text and in a notebook: a class of this kind makes the
    ``tables``.
    """

    __slots__ = ()

    def tables(self, *, full: bool = False) -> RenderableType:
        """All of it for a console of rich; ``full`` gives each item of a list a row of its own."""
        raise NotImplementedError

    def text(self, *, full: bool = False) -> str:
        """All of it as text, as wide as the terminal: short, or ``full``, with all evidence."""
        return as_text(self.tables(full=full))

    def __str__(self) -> str:
        return self.text()

    def __rich__(self) -> RenderableType:
        return self.tables()

    def _repr_html_(self) -> str:
        console = Console(file=io.StringIO(), width=_WIDEST, record=True)
        console.print(self.tables())
        return console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")


def table_of(
    title: str | Text | None, heads: Sequence[str], rows: Iterable[Sequence[str | Text]]
) -> Table:
    """A table, in which every text of a user is only a text."""
    table = Table(title=title, title_justify="left")
    for head in heads:
        table.add_column(head, overflow="fold")
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in row))
    return table


def verdict_line(verdict: str, holds: bool) -> Text:
    """The verdict, green where it holds."""
    return Text.assemble("verdict: ", (verdict, "bold green" if holds else "bold red"))


def as_text(renderable: RenderableType) -> str:
    """The renderable as plain text, as wide as the terminal that it may be printed to."""
    stream = io.StringIO()
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    width = shutil.get_terminal_size((_WIDTH, 24)).columns if is_terminal else _WIDTH
    Console(file=stream, width=width, color_system=None).print(renderable)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


def made_inside(surroundings: Sequence[tuple[str, int]]) -> list[str]:
    """One line for each state of torch in which calls were made.

    >>> made_inside([("inside torch.no_grad()", 2), ("with gradients recorded", 1)])
    ['2 calls were made inside torch.no_grad()', '1 call was made with gradients recorded']
    """
    return [
        f"{counted(count, 'call was', 'calls were')} made {text}" for text, count in surroundings
    ]


def render(
    title: str,
    graphs: Sequence[GraphReport],
    tally: Tally,
    verdict: str,
    remarks: Sequence[str],
    *,
    full: bool = False,
) -> RenderableType:
    """Per graph its axes, symbols and fills, then the trials and the verdict.

    Items of a list of which all is the same are one row, and lines that differ in their numbers
    alone are one line, unless it shall be in ``full``.
    """
    parts: list[RenderableType] = [Text(f"onlooker report of {title}", style="bold")]
    for graph in graphs:
        parts += [
            _axes_table(graph, full),
            table_of("symbols", ("symbol", "observed or probed", "in the program"), graph.symbols),
            *_lines(graph, full),
        ]
    parts.append(_trial_table(tally))
    parts += [Text(f"  tried: {tally.summary}")] if tally.summary else []
    parts += [Text(f"  {text}") for text in _failures(tally)]
    parts += [Text(f"  {text}", style="dim") for text in _each(remarks, full)]
    return Group(*parts, verdict_line(verdict, tally.verified))


def _each(lines: Sequence[str], full: bool) -> Sequence[str]:
    return lines if full else folded(lines)


def _axes_table(graph: GraphReport, full: bool) -> Table:
    title = Text(f"{graph.name} ({graph.made}), calls {_listed(graph.calls)}")
    rows: dict[str, list[AxisRow]] = {}
    for row in graph.axes:
        rows.setdefault(row.axis.partition(".shape[")[0], []).append(row)
    cells = [_cells(path, axes) for path, axes in rows.items()]
    shown = [
        (path, f"[{asked}]", Text(f"[{obtained}]", style=style))
        for path, asked, obtained, style in (cells if full else folded_rows(cells))
    ]
    return table_of(title, ("input", "asked", "obtained"), shown)


def _cells(path: str, axes: Sequence[AxisRow]) -> tuple[str, str, str, str]:
    """The path, what was asked and obtained of its axes, and a colour where the program takes
    less than it should.
    """
    asked = ", ".join(row.asked for row in axes)
    obtained = ", ".join(row.obtained for row in axes)
    colour = "red" if any(row.narrowed for row in axes) else ""
    return path, asked, obtained, colour


def _lines(graph: GraphReport, full: bool) -> list[RenderableType]:
    lines = [f"relation {text}: {found}" for text, found in graph.relations]
    lines += [f"absent {path} is filled: {text}" for path, text in graph.fills]
    constants = [f"{path}={value}" for path, value in graph.constants]
    if constants:
        lines.append(f"constants: {', '.join(_each(constants, full))}")
    sizes = ", ".join(f"{name}={size}" for name, size in graph.sizes)
    lines.append(f"exported with {sizes or 'no changing size'} in {graph.seconds:.1f} s")
    lines += [f"needs {text}" for text in graph.needs]
    lines += [f"  {condition}" for condition in graph.conditions]
    lines += [f"dropped: {text}" for text in _dropped(graph, full)]
    lines += [f"note: {text}" for text in graph.notes]
    return [Text(f"  {line}") for line in _each(lines, full)]


def _dropped(graph: GraphReport, full: bool) -> list[str]:
    """The conditions that are not needed; of several proofs of one condition the first, unless
    it shall be in full.
    """
    proofs: dict[str, list[str]] = {}
    for dropped in graph.dropped:
        proofs.setdefault(dropped.condition, []).append(dropped.evidence)
    if full:
        return [
            f"{condition} is not needed: {each}"
            for condition, found in proofs.items()
            for each in found
        ]
    more = {
        condition: f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        for condition, found in proofs.items()
    }
    return [
        f"{condition} is not needed: {found[0]}{more[condition]}"
        for condition, found in proofs.items()
    ]


def _trial_table(tally: Tally) -> Table:
    rows = []
    for kind in dict.fromkeys(check.kind for check in tally.checks):
        checks = [check for check in tally.checks if check.kind == kind]
        passed = [check for check in checks if check.passed]
        worst = max((check.difference for check in passed), default=0.0)
        rows.append((kind, str(len(passed)), str(len(checks)), f"{worst:.2g}"))
    return table_of("trials", ("kind", "passed", "of", "largest difference"), rows)


def _failures(tally: Tally) -> list[str]:
    lines = [
        f"{check.outcome.value}: {check.label}: {check.note}"
        for check in tally.checks
        if not check.passed
    ]
    return first_few(lines, _MOST_FAILURES, "... and {} more")


def _listed(calls: Sequence[int]) -> str:
    if len(calls) > 2 and list(calls) == list(range(calls[0], calls[-1] + 1)):
        return f"{calls[0]} to {calls[-1]}"
    return ", ".join(map(str, calls))
