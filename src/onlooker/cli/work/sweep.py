"""``onlooker sweep``: many exports, each in a process and a folder of its own."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from ...core.errors import MissingPackageError, UsageError
from ...fleet.job import EXPORT, Job, jobs_of
from ...fleet.sweep import sweep
from ...fleet.table import GOOD
from ..command import Answer, ExitCode, to_type
from ..command_line import parsed
from ..progress import progress

__all__ = ["read_jobs", "run"]


def run(options: argparse.Namespace, stderr: TextIO) -> Answer:
    """Reads the jobs and runs them here; nothing of torch is imported by this process."""
    jobs = read_jobs(options.place)
    listed = {job.name: job for job in jobs_of(jobs, options.out)}
    for job in listed.values():
        _check_words(job)
    limits = {"seconds": options.seconds, "memory": options.memory}
    with progress(stderr):
        found = sweep(jobs, into=options.out, workers=options.workers, redo=options.redo, **limits)
    failed = [listed[row["name"]] for row in found.rows if row["status"] not in GOOD]
    following = ["show", str(options.out / found.rows[0]["name"] / "program")]
    if failed:
        following = ["export", *failed[0].arguments.get("words", ())]
    return Answer(
        ExitCode.of(found.holds),
        lambda console: console.print(found.tables(full=options.full)),
        found.to_dict,
        to_type(*following),
    )


def _check_words(job: Job) -> None:
    """Passes for a job whose options the command has.

    :raises UsageError: ``bad-command-line``
    """
    words = job.arguments["words"] if job.run == EXPORT else []
    try:
        parsed(["export", *words])
    except UsageError as error:
        error.happened_at(job.name)
        raise


def read_jobs(place: Path) -> dict[str, Mapping[str, Any]]:
    """The jobs of a file of TOML or JSON, by their names; each has the fields of ``defaults`` that it
    does not name.

    :raises UsageError: ``bad-job``
    :raises MissingPackageError: ``missing-package``
    """
    text = place.read_text(encoding="utf-8")
    try:
        document = json.loads(text) if place.suffix == ".json" else _toml().loads(text)
    except ValueError as error:
        raise UsageError(
            f"{place} cannot be read: {error}.",
            slug="bad-job",
            hint="Write a table for each job: [jobs.NAME] and, below it, build = 'app.py:build'.",
        ) from error
    jobs = document.get("jobs") if isinstance(document, dict) else None
    if not isinstance(jobs, dict) or not jobs or document.keys() - {"jobs", "defaults"}:
        raise UsageError(
            f"{place} has no jobs, or more than jobs and defaults.",
            slug="bad-job",
            hint="Write a table for each job: [jobs.NAME] and, below it, build = 'app.py:build'.",
        )
    return {name: {**document.get("defaults", {}), **job} for name, job in jobs.items()}


def _toml() -> Any:
    """The reader of TOML that Python has since 3.11."""
    name = "tomllib" if sys.version_info >= (3, 11) else "tomli"
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingPackageError(
            f"A file of TOML cannot be read here: there is no {name}.",
            slug="missing-package",
            hint="Install it with: pip install tomli. Or write the jobs as JSON, in jobs.json.",
        ) from error
