"""Rows of fell_back.py -> docs/fell_back.md."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fell_back_models import entries

Row = Mapping[str, Any]

EXPORTERS = {"onlooker": "onlooker", "dynamo": "`dynamo=True`", "legacy": "`dynamo=False`"}
_TOP = """# Models that fell back

Many projects export their models with `torch.onnx.export(dynamo=False)`, the exporter of TorchScript that is
deprecated: the new one refused their model, or its file had fixed sizes. Here are models of those kinds, from packages
of Python's index in small configurations with random weights, and small ones of our own where the model is in no such
package ("own", "-like"). One script exports each of them, with `input_names`, `dynamic_axes`, `opset_version=18` and an
example of two rows (one row for the voices of our own, one image for the detectors); only the word before the bracket
differs: `onlooker.onnx_export`, `torch.onnx.export(dynamo=True)` and `torch.onnx.export(dynamo=False)`, all as they
are. Nothing else of a project's script is here: a patch of the model is not used for any.

ONNX Runtime then runs the file on the example, and on calls of other sizes that no exporter saw. **3/3** is how many of
these have the shapes and the numbers of the model (within 1e-3 of 1 + max|expected|). *wrong example* is a file that
is wrong for the example itself. *refused* is an error and no file; *unreadable* a file that ONNX Runtime does not
load; *time* is more than the 150 seconds of the processor that each may take. Seconds are those of the processor, for
the export alone, and for onlooker with the proof of what it wrote. Files are counted with their weights.
`python benchmarks/fell_back.py` measures, and `--page` writes this page from what was measured;
[benchmarks/fell_back_models.py](../benchmarks/fell_back_models.py) has the models.
How to change a script: [From torch.onnx.export](howto/from_torch_onnx_export.md).
"""
_LONGEST = 240


def page_of(rows: Iterable[Row]) -> str:
    """The whole page, as Markdown."""
    by_name = {str(row["name"]): row for row in rows}
    return "\n".join([_TOP, *_table(by_name), "", *_sums(by_name), "", *_reasons(by_name)]) + "\n"


def _table(rows: Mapping[str, Row]) -> Iterator[str]:
    titles = [f"{title} | s | files" for title in EXPORTERS.values()]
    yield "| model | package | " + " | ".join(titles) + " |"
    yield "|---|---|" + "---|---:|---:|" * len(EXPORTERS)
    for entry in entries():
        cells = [_cells(rows.get(f"{entry.name}/{exporter}", {})) for exporter in EXPORTERS]
        yield f"| {entry.name} | {entry.package} | " + " | ".join(cells) + " |"


def _cells(row: Row) -> str:
    """One exporter: how many calls are right, the seconds, the files.

    >>> _cells({"status": "ok", "right": [3, 3], "export_seconds": 4.2, "files": 1})
    '**3/3** | 4.2 | 1'
    >>> _cells({"status": "refused", "export_seconds": 4.2})
    'refused | 4.2 | '
    """
    status = str(row.get("status") or "")
    shown = {"timeout": "time"}.get(status, status)
    if "right" in row:
        right, asked = row["right"]
        shown = f"{right}/{asked}" if status == "wrong" else f"**{right}/{asked}**"
        if str(row.get("message", "")).startswith("the example: "):
            shown = f"wrong example, {right}/{asked}"
    return f"{shown} | {row.get('export_seconds', '')} | {row.get('files', '')}"


def _sums(rows: Mapping[str, Row]) -> Iterator[str]:
    yield "| | all calls right | a file that is wrong for some call | no file that runs | seconds |"
    yield "|---|---:|---:|---:|---:|"
    for exporter, title in EXPORTERS.items():
        own = [row for name, row in rows.items() if name.endswith(f"/{exporter}")]
        own = [row for row in own if row["status"] != "not-installed"]
        right = sum(row["status"] == "ok" for row in own)
        wrong = sum(row["status"] == "wrong" for row in own)
        seconds = sum(float(row.get("export_seconds", 0)) for row in own)
        none = len(own) - right - wrong
        yield f"| {title} | {right} of {len(own)} | {wrong} | {none} | {seconds:.0f} |"


def _reasons(rows: Mapping[str, Row]) -> Iterator[str]:
    yield "## Why not"
    yield ""
    for exporter, title in EXPORTERS.items():
        found = [(entry.name, rows.get(f"{entry.name}/{exporter}", {})) for entry in entries()]
        failed = [(name, row) for name, row in found if row and row["status"] != "ok"]
        if failed:
            yield f"### {title}"
            yield ""
        for name, row in failed:
            yield f"- **{name}**, {row['status']}: {_plain(str(row.get('message') or ''))}"
        if failed:
            yield ""


def _plain(text: str) -> str:
    """A message as text of Markdown, without the colours, the folders and the tail of a long one.

    >>> _plain("ValueError: no <x> in /tmp/a/b.py | c")
    '`ValueError: no <x> in b.py | c`'
    """
    text = re.sub(r"\x1b\[[0-9;]*m", "", text).replace("`", "'")
    text = re.sub(r"(?<![\w.:/])/(?:[\w.+-]+/)+", "", text)
    cut = text if len(text) <= _LONGEST else text[:_LONGEST].rsplit(" ", 1)[0] + " ..."
    return f"`{cut}`"
