"""Tables of a report, for a terminal."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ..core.verdict import Check, Tally
from .data import AxisRow, GraphReport

__all__ = ["as_text", "render"]

_MOST_FAILURES = 8


def as_text(renderable: RenderableType, *, width: int = 118) -> str:
    """The renderable as plain text."""
    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None).print(renderable)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


def render(
    title: str, graphs: Sequence[GraphReport], tally: Tally, verdict: str, remarks: Sequence[str]
) -> RenderableType:
    """Per graph its axes, symbols and fills, then the trials and the verdict."""
    parts: list[RenderableType] = [Text(f"onlooker report of {title}", style="bold")]
    for graph in graphs:
        parts += [_axes_table(graph), _symbol_table(graph), *_lines(graph)]
    parts.append(_trial_table(tally))
    parts += [Text(f"  tried: {tally.summary}")] if tally.summary else []
    parts += [Text(f"  {text}") for text in _failures(tally)]
    parts += [Text(f"  {text}", style="dim") for text in remarks]
    style = "bold green" if verdict == "verified" else "bold red"
    parts.append(Text.assemble("verdict: ", (verdict, style)))
    return Group(*parts)


def _axes_table(graph: GraphReport) -> Table:
    title = Text(f"{graph.name} ({graph.target}), calls {_listed(graph.calls)}")
    table = Table(title=title, title_justify="left")
    for name in ("input", "asked", "obtained"):
        table.add_column(name, overflow="fold")
    rows: dict[str, list[AxisRow]] = {}
    for row in graph.axes:
        rows.setdefault(row.axis.partition(".shape[")[0], []).append(row)
    for path, axes in rows.items():
        asked, obtained = ", ".join(r.asked for r in axes), ", ".join(r.obtained for r in axes)
        narrowed = any(r.narrowed for r in axes)
        shown = Text(f"[{obtained}]", style="red" if narrowed else "")
        table.add_row(Text(path), Text(f"[{asked}]"), shown)
    return table


def _symbol_table(graph: GraphReport) -> Table:
    table = Table(title="symbols", title_justify="left")
    for name in ("symbol", "observed or probed", "in the program"):
        table.add_column(name, overflow="fold")
    for name, observed, limits in graph.symbols:
        table.add_row(escape(name), observed, limits)
    return table


def _lines(graph: GraphReport) -> list[RenderableType]:
    lines = [f"relation {text}: {found}" for text, found in graph.relations]
    lines += [f"absent {path} is filled: {text}" for path, text in graph.fills]
    constants = ", ".join(f"{path}={value}" for path, value in graph.constants)
    lines += [f"constants: {constants}"] if constants else []
    sizes = ", ".join(f"{name}={size}" for name, size in graph.sizes)
    lines += [f"exported with {sizes or 'no changing size'} in {graph.seconds:.1f} s"]
    lines += [f"needs {text}" for text in graph.needs]
    lines += [f"  {condition}" for condition in graph.conditions]
    lines += [f"dropped: {text}" for text in graph.dropped]
    lines += [f"note: {text}" for text in graph.notes]
    return [Text(f"  {line}") for line in lines]


def _trial_table(tally: Tally) -> Table:
    table = Table(title="trials", title_justify="left")
    for name in ("kind", "passed", "of", "largest difference"):
        table.add_column(name)
    for kind in dict.fromkeys(check.kind for check in tally.checks):
        checks = [check for check in tally.checks if check.kind == kind]
        passed = [check for check in checks if check.passed]
        worst = max((check.difference for check in passed), default=0.0)
        table.add_row(kind, str(len(passed)), str(len(checks)), f"{worst:.2g}")
    return table


def _failures(tally: Tally) -> list[str]:
    failed = [check for check in tally.checks if not check.passed]
    lines = [_failure(check) for check in failed[:_MOST_FAILURES]]
    more = len(failed) - _MOST_FAILURES
    return [*lines, f"... and {more} more"] if more > 0 else lines


def _failure(check: Check) -> str:
    return f"{check.outcome.value}: {check.label}: {check.note}"


def _listed(calls: Sequence[int]) -> str:
    if len(calls) > 2 and list(calls) == list(range(calls[0], calls[-1] + 1)):
        return f"{calls[0]} to {calls[-1]}"
    return ", ".join(map(str, calls))
