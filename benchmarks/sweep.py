"""Tiny random models of every architecture that transformers, timm and torchvision have: used,
watched once, exported, and asked what nobody watched.

    python benchmarks/sweep.py [--only NAME,...] [--sample N --seed S] [--jobs N] [--redo]
    python benchmarks/sweep.py --page

Each architecture is a job of ``onlooker.sweep``: it has a process of its own with a limit of time and
memory, a folder with its log, and a line in a file,
``benchmarks/rows/sweep.jsonl`` unless ``--out`` says otherwise. What the file has already is not run
again (``--redo`` does; the last line of a name counts). ``--page`` writes ``docs/models.md`` from the
file. ``ok`` means that all unseen calls are exact and that ``verify()`` says verified.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import importlib
import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import environment  # noqa: F401  # before torch is imported
import torch
from sweep_measure import measure

from onlooker.fleet.job import jobs_of
from onlooker.fleet.sweep import completed

PAGE = Path(__file__).parent.parent / "docs" / "models.md"
ROWS = Path(__file__).parent / "rows" / "sweep.jsonl"
#: library -> the script that knows its architectures
LIBRARIES = {
    "transformers": "sweep_transformers",
    "timm": "sweep_timm",
    "torchvision": "sweep_torchvision",
}
#: the function of a job
MEASURED = f"{Path(__file__).with_name('sweep_child.py').absolute()}:measured"


@dataclass(frozen=True, slots=True)
class Architecture:
    """``library/name``, and the function that builds its use: it runs in the child."""

    library: str
    name: str
    family: str
    build: Callable[[], Any] = field(compare=False)
    measure: Callable[..., None] = field(default=measure, compare=False)

    def measured(self, note: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        """Its row, in the process of its job."""
        torch.set_num_threads(1)
        row = {"name": self.label, "family": self.family, "status": None}
        self.measure(self.build, row, note)
        row.pop("stage", None)
        return row

    @property
    def label(self) -> str:
        """What ``--only`` and the file call it."""
        return f"{self.library}/{self.name}"


def architectures() -> Iterator[Architecture]:
    """All of them, those of a library that cannot be imported left out, with a word about it."""
    for library, script in LIBRARIES.items():
        try:
            importlib.import_module(library)
        except Exception as error:
            text = " ".join(str(error).split())[:120]
            print(f"left out: {library} cannot be imported ({text})", file=sys.stderr)
            continue
        for name, family, build in importlib.import_module(script).architectures():
            yield Architecture(library, name, family, build)


def chosen(options: argparse.Namespace) -> list[Architecture]:
    """What the command line asks for, in the order of the libraries."""
    found = list(architectures())
    if options.only:
        patterns = options.only.split(",")
        found = [
            one
            for one in found
            if any(fnmatch.fnmatch(one.label, p) or one.name == p for p in patterns)
        ]
    if options.sample and options.sample < len(found):
        found = random.Random(options.seed).sample(found, options.sample)
    done = set() if options.redo else set(rows_of(options.out))
    return [one for one in found if one.label not in done]


def rows_of(path: Path) -> dict[str, dict[str, Any]]:
    """Label -> its last row; a line that was cut off is left out."""
    found = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        with contextlib.suppress(json.JSONDecodeError):
            row = json.loads(line)
            found[row["name"]] = row
    return found


def run(todo: list[Architecture], options: argparse.Namespace, function: str = MEASURED) -> None:
    """All of it, ``--jobs`` at a time; every row is appended as it is complete."""
    begin = time.monotonic()
    of_labels = {architecture.label: architecture for architecture in todo}
    jobs = jobs_of(
        [{"name": label, "run": function, "arguments": {"label": label}} for label in of_labels],
        Path(f"{options.out}.logs").absolute(),
        seconds=options.timeout,
        memory=options.memory,
    )
    for number, row in enumerate(completed(jobs, workers=options.jobs, redo=True), 1):
        shown = row_of(of_labels[row["name"]], row)
        with options.out.open("a") as file:
            file.write(json.dumps(shown) + "\n")
        where = f"[{number}/{len(todo)} {time.monotonic() - begin:.0f}s]"
        print(f"{where} {line_of(shown)}"[:220], flush=True)


def row_of(architecture: Architecture, row: Mapping[str, Any]) -> dict[str, Any]:
    """The row of an architecture from that of its job, in the words of the page."""
    found = {"name": architecture.label, "family": architecture.family, **row}
    stage = found.pop("stage", "build")
    if found["status"] == "timeout":
        found["slug"] = f"timeout in {stage}"
    elif found["status"] in ("died", "lost", "memory"):
        found.update(status="crash", slug="the process died")
    return found


def line_of(row: dict[str, Any]) -> str:
    """One row for people."""
    unseen = " ".join(f"{kind} {count}" for kind, count in row.get("unseen", {}).items())
    parts = (row["status"], row["name"], f"{row['seconds']} s", row.get("use"), unseen)
    return "  ".join(str(part) for part in (*parts, row.get("message")) if part)


def main() -> int:
    """0 when all that was asked for has a row."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROWS, help="one line each")
    parser.add_argument("--only", help="labels, names or patterns, separated by commas")
    parser.add_argument("--sample", type=int, help="as many, drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--timeout", type=int, default=150, help="processor seconds for each (150)")
    parser.add_argument("--memory", type=float, default=8, help="GiB of addresses for each (8)")
    parser.add_argument("--redo", action="store_true", help="also what the file has already")
    parser.add_argument("--list", action="store_true", help="print the labels, run nothing")
    parser.add_argument("--page", action="store_true", help="write docs/models.md, run nothing")
    options = parser.parse_args()
    if options.page:
        from sweep_page import page_of

        PAGE.write_text(page_of(list(rows_of(options.out).values())))
        print(f"written: {PAGE}")
        return 0
    todo = chosen(options)
    if options.list:
        print("\n".join(one.label for one in todo))
        return 0
    print(f"{len(todo)} architectures to measure", flush=True)
    run(todo, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
