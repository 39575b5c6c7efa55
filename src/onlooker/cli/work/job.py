"""A job of a sweep that is an export: ``onlooker export`` in the process of the job."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

# what an export needs is imported once, before the processes of the jobs are made
from ...core.support.progress import Step, listening
from ..command_line import main
from . import export as _export  # noqa: F401

__all__ = ["export"]

#: the folder of the program, or programs, inside of that of the job
PROGRAM = "program"
_MOST_TEXT = 2000


def export(
    folder: Path, note: Callable[[dict[str, Any]], None], words: Sequence[str]
) -> dict[str, Any]:
    """Exports into the folder of a job; returns its row."""
    stages: list[str] = []
    note({"stage": "the use of the model"})

    def told(step: Step) -> None:
        if step.what not in stages[-1:]:
            stages.append(step.what)
            note({"stage": step.what})

    stdout = io.StringIO()
    with listening(told):
        main(["export", *words, "--out", str(folder / PROGRAM), "--json"], stdout, sys.stderr)
    found = json.loads(stdout.getvalue() or "{}")
    error = found.get("error")
    if error is not None or not found:
        refused = error or {"slug": "bad-command-line", "message": "see log.txt", "hint": ""}
        hint = "log.txt has it." if refused["slug"] == "function-raised" else refused["hint"]
        text = f"{refused['message']} {hint}".strip()[:_MOST_TEXT]
        return {"status": "error", "message": text, "slug": refused["slug"]}
    return _row(found, is_tried="--no-verify" not in words)


def _row(found: Mapping[str, Any], *, is_tried: bool) -> dict[str, Any]:
    """The row of an export, from what the command printed as JSON."""
    report = found["report"]
    reports = list(report["programs"].values()) if "programs" in report else [report]
    graphs = sum(len(one["graphs"]) for one in reports)
    row: dict[str, Any] = {"status": "exported", "files": [PROGRAM], "graphs": graphs}
    if not is_tried:
        return row
    outcomes = [trial["outcome"] for one in reports for trial in one["trials"]]
    agreeing = outcomes.count("exact")
    status = "verified" if found["verified"] else "not-verified"
    message = "" if found["verified"] else str(report["verdict"])
    return {
        **row,
        "status": status,
        "checks": f"{agreeing}/{len(outcomes)}",
        "message": message,
        "verdict": report["verdict"],
    }
