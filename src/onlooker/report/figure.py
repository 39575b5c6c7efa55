"""A figure of a program: its calls by the graph that serves them, and the sizes that were tried."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..core.contents import ProgramContents
from ..core.drawing.figure import Points, TriedPair, figure_of
from ..core.traffic import SizedCall

__all__ = ["figure_of_program"]


def figure_of_program(program: ProgramContents[Any], calls: Sequence[SizedCall]) -> Any:
    """A figure of matplotlib: every symbol over the calls, coloured by the graph that serves them,
    and the two symbols that changed most beside each other.

    :raises MissingPackageError: ``missing-package``
    """
    names = dict.fromkeys(symbol.name for plan in program.plans for symbol in plan.symbols)
    columns = [Points(name, tuple(sizes.get(name) for _, sizes in calls)) for name in names]
    groups = [row.graph if row.holds else "no graph" for row, _ in calls]
    title = f"{len(program.recording)} calls of {program.method}"
    first = sorted(columns, key=lambda column: -len(set(column.sizes)))[:2]
    if len(first) < 2:
        return figure_of(title, columns, groups)
    x, y = sorted(first, key=columns.index)
    tried = [
        TriedPair(sizes[x.name], sizes[y.name], check.passed)
        for check in program.tally.checks
        for sizes in (dict(check.sizes),)
        if x.name in sizes and y.name in sizes
    ]
    return figure_of(title, columns, groups, (x, y), tried)
