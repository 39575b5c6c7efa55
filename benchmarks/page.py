"""Results -> docs/benchmarks.md."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from frame import Figure, shown

_TOP = """# Benchmarks

`make bench` runs these and writes this page; `make bench QUICK=1` takes smaller inputs and only prints. Each script of
`benchmarks/` can be run by itself. Ratios are of runs in one process, in pairs. The seconds of inference, exports and
pipelines are those of the processor, so that what else the machine does is left out; those of imports, watching and
dispatch are of the clock. Absolute times say something of the machine below only. What a target is missing by, and
where the time goes, stands at the end.
"""


def page_of(results: Mapping[str, Any]) -> str:
    """The whole page, as Markdown."""
    parts = [_TOP, *_machines(results)]
    missed = [
        (name, f)
        for name, result in results.items()
        for f in _figures(result)
        if f.reached is False
    ]
    parts.append("\n".join(_summary(results, missed)))
    for name, result in results.items():
        parts.append("\n".join(_section(name, result)))
    if missed:
        parts.append("\n".join(_missed(missed)))
    return "\n".join(parts)


def _figures(result: Mapping[str, Any]) -> list[Figure]:
    return [Figure.read(values) for values in result["figures"]]


def _machines(results: Mapping[str, Any]) -> Iterator[str]:
    """One line per set of machine and versions, with the benchmarks that ran there."""
    groups: dict[str, list[str]] = {}
    for name, result in results.items():
        text = ", ".join(f"{key} {value}" for key, value in result["machine"].items())
        groups.setdefault(text, []).append(name)
    for text, names in groups.items():
        which = "" if len(groups) == 1 else f" ({', '.join(names)})"
        yield f"Measured with: {text}{which}.\n"


def _summary(results: Mapping[str, Any], missed: list[tuple[str, Figure]]) -> Iterator[str]:
    aimed = sum(f.target is not None for result in results.values() for f in _figures(result))
    yield (
        f"{aimed - len(missed)} of {aimed} targets are"
        f" reached{'; the others stand at the end' if missed else ''}.\n"
    )


def _section(name: str, result: Mapping[str, Any]) -> Iterator[str]:
    yield f"## {name}\n"
    yield f"{_about(name)}\n"
    yield "| figure | value | target | | |"
    yield "|---|---:|---:|---|---|"
    for figure in _figures(result):
        target = "" if figure.target is None else f"{shown(figure.target)} {figure.unit}"
        mark = f"**{figure.mark}**" if figure.reached is False else figure.mark
        cells = figure.name, f"{shown(figure.value)} {figure.unit}", target, mark, figure.note
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
    yield ""


def _about(name: str) -> str:
    """What a script measures, as it says itself: its text without the command line."""
    source = Path(__file__).with_name(f"{name}.py").read_text()
    text = ast.get_docstring(ast.parse(source)) or ""
    kept = [part for part in text.split("\n\n") if f"python benchmarks/{name}.py" not in part]
    return "\n\n".join(part.strip().replace("``", "`") for part in kept)


def _missed(missed: list[tuple[str, Figure]]) -> Iterator[str]:
    yield "## Not reached, and where the time goes\n"
    for name, figure in missed:
        target = f"{shown(figure.target or 0.0)} {figure.unit}"
        yield f"**{name}: {figure.name}**: {shown(figure.value)} {figure.unit}, target {target}.\n"
        if figure.profile:
            yield "```\n" + "\n".join(figure.profile) + "\n```\n"
