"""The data of a page: one entry point with its calls, pictures and tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..core.alike import folded
from ..core.verdict import Check
from .columns import Column, columns_of
from .pictures import guards_of, joints_of, proof_of, relations_of, spans_of, waste_of
from .subject import Subject

__all__ = ["entry_data"]


def entry_data(subject: Subject) -> dict[str, Any]:
    """All that is drawn and listed of one entry point, as JSON takes it.

    The different calls are columns: a column of which all values are equal is that value alone.
    """
    columns = columns_of(subject)
    return {
        "name": subject.name,
        "facts": [list(fact) for fact in subject.facts],
        "remarks": folded(subject.remarks),
        "calls": subject.n_calls,
        "seconds": subject.seconds,
        "counted": subject.counted,
        "graphs": [graph.name for graph in subject.graphs],
        "columns": [_column(column) for column in columns],
        "different": len(subject.calls),
        "graph_of": _packed(subject.graph_of),
        "counts": _packed([call.count for call in subject.calls]),
        "micros": _packed([_rounded(1e6 * call.seconds) for call in subject.calls]),
        "order": _packed_order([place for place, _ in subject.runs]),
        "repeats": _packed([count for _, count in subject.runs]),
        "runs": len(subject.runs),
        "joints": joints_of(subject, columns),
        "relations": relations_of(subject),
        "spans": spans_of(subject),
        "proof": proof_of(subject, columns),
        "guards": guards_of(subject),
        "waste": waste_of(subject),
        "tables": [*_tables(subject)],
    }


def _column(column: Column) -> dict[str, Any]:
    return {
        "text": column.text,
        "axes": list(column.axes),
        "is_symbol": column.is_symbol,
        "sizes": _packed(column.values),
    }


def _packed(values: Sequence[Any]) -> Any:
    """The values; one value alone where all are equal."""
    if values and all(value == values[0] for value in values):
        return values[0]
    return list(values)


def _packed_order(places: Sequence[int]) -> list[int] | None:
    """The places; None where they count from 0."""
    return None if list(places) == list(range(len(places))) else list(places)


def _rounded(number: float) -> int:
    """A number with two digits that count: a page needs no more of a time."""
    return int(float(f"{number:.1e}"))


def _tables(subject: Subject) -> list[dict[str, Any]]:
    """What is listed as text, without a picture of its own or beside it."""
    found = [_axes_table(subject)]
    dropped = [
        [graph.name, one.condition, one.evidence]
        for graph in subject.graphs
        if graph.report is not None
        for one in graph.report.dropped
    ]
    if dropped:
        heads = ["graph", "condition", "evidence"]
        found.append({"title": "Conditions that are not needed", "heads": heads, "rows": dropped})
    if subject.tally is not None:
        trials = [_trial_row(check) for check in subject.tally.checks]
        heads = ["trial", "outcome", "looks at", "difference", "note"]
        found.append({"title": "Trials", "heads": heads, "rows": trials})
    return found


def _trial_row(check: Check) -> list[Any]:
    difference = check.difference if check.difference < float("inf") else "infinite"
    return [check.label, check.outcome.value, check.focus or "", difference, check.note]


def _axes_table(subject: Subject) -> dict[str, Any]:
    rows = []
    for graph in subject.graphs:
        for leaf in graph.plan.inputs:
            relations = {str(one.left): str(one.evidence) for one in graph.plan.relations}
            for axis, expression in leaf.axes:
                obtained = graph.obtained.get(str(axis), "")
                evidence = relations.get(str(axis), "")
                kind = leaf.dtype.removeprefix("torch.") or "int"
                rows.append([graph.name, str(axis), kind, str(expression), obtained, evidence])
    heads = ["graph", "axis", "kind", "size", "in the program", "evidence"]
    return {"title": "Axes", "heads": heads, "rows": rows}
