"""Tiny random models of every architecture that transformers, timm and torchvision have: used,
watched once, exported, and asked what nobody watched.

    python benchmarks/sweep.py [--only NAME,...] [--sample N --seed S] [--jobs N] [--redo]
    python benchmarks/sweep.py --page

Each architecture has a process of its own with a limit of time and memory, and a line in a file,
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
import multiprocessing
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import environment  # noqa: F401  # before torch is imported
import torch
from sweep_measure import measure

PAGE = Path(__file__).parent.parent / "docs" / "models.md"
ROWS = Path(__file__).parent / "rows" / "sweep.jsonl"
#: library -> the script that knows its architectures
LIBRARIES = {
    "transformers": "sweep_transformers",
    "timm": "sweep_timm",
    "torchvision": "sweep_torchvision",
}
#: a process that waits, as for a lock or for others, may take this many times its limit on the clock
PATIENCE = 30


@dataclass(frozen=True, slots=True)
class Architecture:
    """``library/name``, and the function that builds its use: it runs in the child."""

    library: str
    name: str
    family: str
    build: Callable[[], Any] = field(compare=False)
    measure: Callable[..., None] = field(default=measure, compare=False)

    @property
    def label(self) -> str:
        """What ``--only`` and the file call it."""
        return f"{self.library}/{self.name}"


@dataclass(slots=True)
class Job:
    """One architecture in its process, and the last row that came from there."""

    architecture: Architecture
    process: Any
    pipe: Connection
    begin: float
    row: dict[str, Any]


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


def start(architecture: Architecture, options: argparse.Namespace) -> Job:
    """A child that measures one architecture."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=child, args=(there, architecture, options))
    process.start()
    there.close()
    row = {"name": architecture.label, "family": architecture.family, "status": None}
    return Job(architecture, process, here, time.monotonic(), row)


def child(pipe: Connection, architecture: Architecture, options: argparse.Namespace) -> None:
    """Measures, within the limits of processor time and memory; what it prints goes to a log."""
    os.setsid()
    folder = Path(f"{options.out}.logs")
    folder.mkdir(exist_ok=True)
    log = os.open(
        folder / f"{architecture.label.replace('/', '.')}.log",
        os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
    )
    os.dup2(log, 1)
    os.dup2(log, 2)
    bytes_ = int(options.memory * 1024**3)
    resource.setrlimit(resource.RLIMIT_AS, (bytes_, bytes_))
    resource.setrlimit(resource.RLIMIT_CPU, (options.timeout, options.timeout + 5))
    torch.set_num_threads(1)
    row = {"name": architecture.label, "family": architecture.family, "status": None}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        tempfile.tempdir = scratch
        try:
            architecture.measure(architecture.build, row, pipe.send)
        except BaseException:
            traceback.print_exc()
            row["status"], row["message"] = "crash", "the benchmark itself failed, see its log"
            row.pop("stage", None)
        pipe.send(row)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def finished(job: Job, options: argparse.Namespace) -> bool:
    """Reads what a child sent; True when its row is complete."""
    late: bool = time.monotonic() - job.begin > PATIENCE * options.timeout
    try:
        while job.pipe.poll():
            job.row = job.pipe.recv()
            if job.row["status"] is not None and "stage" not in job.row:
                end(job)
                return True
    except EOFError:
        end(job)
        _died(job, options)
        return True
    if late:
        end(job)
        job.row.update(status="timeout", message=f"waited in {job.row.get('stage')}")
    return late


def end(job: Job) -> None:
    """The child and its own children are gone."""
    job.process.join(2)
    if job.process.is_alive():
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.process.pid, signal.SIGKILL)
        job.process.join()


def _died(job: Job, options: argparse.Namespace) -> None:
    stage, code = job.row.get("stage"), job.process.exitcode
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        text = f"more than {options.timeout} seconds of the processor, in {stage}"
        job.row.update(status="timeout", message=text, slug=f"timeout in {stage}")
    else:
        text = f"the process died in {stage} (exit code {code})"
        job.row.update(status="crash", message=text, slug="the process died")


def run(todo: list[Architecture], options: argparse.Namespace) -> None:
    """All of it, ``--jobs`` at a time; every row is appended as it is complete."""
    begin, number = time.monotonic(), 0
    jobs: list[Job] = []
    waiting = list(reversed(todo))
    while waiting or jobs:
        while waiting and len(jobs) < options.jobs:
            jobs.append(start(waiting.pop(), options))
        wait([job.pipe for job in jobs], timeout=1.0)
        for job in list(jobs):
            if not finished(job, options):
                continue
            jobs.remove(job)
            job.pipe.close()
            number += 1
            job.row.pop("stage", None)
            job.row.setdefault("seconds", round(time.monotonic() - job.begin, 1))
            job.row["day"] = time.strftime("%Y-%m-%d")
            with options.out.open("a") as file:
                file.write(json.dumps(job.row) + "\n")
            where = f"[{number}/{len(todo)} {time.monotonic() - begin:.0f}s]"
            print(f"{where} {line_of(job.row)}"[:220], flush=True)


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
    import torch._dynamo
    import torch.export

    torch.set_num_threads(1)
    print(f"{len(todo)} architectures to measure", flush=True)
    run(todo, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
