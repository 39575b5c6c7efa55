"""Data -> one HTML file, with style and script inside; it may load nothing, and says so itself."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import jinja2

from ..capture.combine import Captured
from ..capture.summary import Summary, summary_of
from ..core.drawing.alike import folded
from ..core.recording import Recording
from ..core.verdict import Check, Tallies, Tally
from ..program import Program
from ..programs import Programs
from .columns import SizeColumn, columns_of
from .pictures import guards_of, joints_of, proof_of, relations_of, spans_of, waste_of
from .subject import Subject, of_program, of_recording, of_seen

__all__ = ["entry_data", "page_of"]


# The data of a page: one entry point with its calls, pictures and tables.
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


def _column(column: SizeColumn) -> dict[str, Any]:
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
    """The tables of texts that have no picture of their own."""
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
                obtained = graph.exported.get(str(axis), "")
                evidence = relations.get(str(axis), "")
                kind = leaf.dtype.removeprefix("torch.") or "int"
                rows.append([graph.name, str(axis), kind, str(expression), obtained, evidence])
    heads = ["graph", "axis", "kind", "size", "in the program", "evidence"]
    return {"title": "Axes", "heads": heads, "rows": rows}


_TEMPLATE, _STYLE, _SCRIPT = "page.html.j2", "page.css", "page.js"


def page_of(found: Captured | Program | Programs | Recording, title: str) -> str:
    """The page of what processes saw, of a program, of several, or of a recording.

    The policy in its head forbids a browser to load anything, and to run another script.
    """
    return _rendered(_data_of(found, title))


def _data_of(found: Captured | Program | Programs | Recording, title: str) -> dict[str, Any]:
    if isinstance(found, Captured):
        return _of_captured(found, title)
    if isinstance(found, Recording):
        return _document(title, "recording", [of_recording(found)])
    if isinstance(found, Programs):
        subjects = [of_program(name, program) for name, program in found.items()]
        return _document(title, "programs", subjects, proof=found.tally)
    recording = found.recording
    name = f"{recording.model.rpartition('.')[2]}.{recording.method}"
    return _document(title, "program", [of_program(name, found)], proof=found.tally)


def _of_captured(captured: Captured, title: str) -> dict[str, Any]:
    summary = summary_of(captured)
    pairs = zip(captured.seen, summary.entries, strict=True)
    subjects = [of_seen(seen, entry) for seen, entry in pairs]
    return _document(title, "run", subjects, summary.remarks, tables=[_processes(summary)])


def _document(
    title: str,
    kind: str,
    subjects: Sequence[Subject],
    remarks: Sequence[str] = (),
    *,
    proof: Tally | Tallies | None = None,
    tables: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    return {
        "title": title,
        "kind": kind,
        "verdict": "" if proof is None else proof.verdict,
        "verified": proof is not None and proof.verified,
        "calls": sum(subject.n_calls for subject in subjects),
        "remarks": [f"{text[0].upper()}{text[1:]}." for text in remarks],
        "tables": list(tables),
        "entries": [entry_data(subject) for subject in subjects],
    }


def _processes(summary: Summary) -> dict[str, Any]:
    heads = ["host", "pid", "rank", "program", "calls", "ended", "torch"]
    rows = [
        [
            one["host"],
            one["pid"],
            "" if one["rank"] is None else one["rank"],
            one["program"],
            one["calls"],
            "from outside, or still running" if one["ended"] is None else "by itself",
            one["torch"],
        ]
        for one in summary.processes
    ]
    return {"title": "Processes", "heads": heads, "rows": rows}


def _rendered(data: dict[str, Any]) -> str:
    folder = files(__package__)
    style, script = (folder.joinpath(name).read_text("utf-8") for name in (_STYLE, _SCRIPT))
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(folder.joinpath(_TEMPLATE).read_text("utf-8"))
    return template.render(
        page=data,
        data=_as_script_data(data),
        style=style,
        script=script,
        style_digest=_digest(style),
        script_digest=_digest(script),
    )


def _as_script_data(data: dict[str, Any]) -> str:
    """JSON that stands in a ``<script>``: no text of it can end the element, nor begin a comment
    (https://html.spec.whatwg.org/multipage/scripting.html#restrictions-for-contents-of-script-elements).
    """
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")


def _digest(text: str) -> str:
    """As a content security policy names a style sheet or a script."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
