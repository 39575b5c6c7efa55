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
from ..core.recording import Recording
from ..core.verdict import Tallies, Tally
from ..program import Program
from ..programs import Programs
from .entry import entry_data
from .subject import Subject, of_program, of_recording, of_seen

__all__ = ["page_of"]

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
