"""Jobs on any executor, and the table of what became of them."""

from __future__ import annotations

import collections
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from pathlib import Path
from typing import Any

from ..core.errors import UnsupportedError, UsageError
from ..core.support.kinds import as_path
from ..core.support.progress import kept_when_interrupted, tell
from ..disk.files import write_file
from ..disk.text import write_json
from .job import Job, JobsOption, failed, jobs_of
from .table import Row, Swept
from .work import close_hosts, kept_row, run_job

__all__ = ["ExecutorOption", "completed", "sweep"]

#: an executor, anything else whose ``submit`` gives what has ``done`` and ``result``, or a function
#: that makes one
ExecutorOption = Executor | Callable[[], Any] | Any
#: how often in a row a pool may break before one job has ended
_MOST_BROKEN = 3
#: seconds between two looks at what is no future of :mod:`concurrent.futures`
_LOOK = 0.2


def sweep(
    jobs: JobsOption,
    executor: ExecutorOption = None,
    *,
    into: str | Path,
    workers: int | None = None,
    seconds: float | None = None,
    memory: float | None = None,
    redo: bool = False,
) -> Swept:
    """Runs every job in a process and a folder of its own; returns the table of their rows.

    A job is a mapping of the options of ``onlooker export``: ``{"build": "app.py:build", "to":
    ["torch", "onnx"], "range": ["batch=1:64"]}``, or ``{"model": "models/llama"}``. Each target is a
    job. ``run`` names a function of yours instead, which is called with the folder, with a function
    that takes notes, and with the ``arguments`` of the job; it returns its row.

    Jobs run on this machine, as many at once as there are ``workers``, or wherever ``executor`` runs
    them: a :class:`concurrent.futures.Executor`, or a function that makes one, so that a broken pool
    is replaced. All workers see the folder ``into``. A folder in which the same job has left a whole
    result is kept, unless ``redo`` is True; so a sweep that was ended goes on when it is made again.

    ``seconds`` of the processor and ``memory`` in GiB of addresses are the limits of each job that
    names no others. ``into`` has the table as ``sweep.json`` and ``sweep.html``.

    :raises UsageError: ``bad-job``, ``bad-workers``
    :raises UnsupportedError: ``no-fork``
    """
    folder = Path(os.path.abspath(as_path(into, "into")))
    listed = jobs_of(jobs, folder, seconds=seconds, memory=memory)
    folder.mkdir(parents=True, exist_ok=True)
    rows: dict[str, Row] = {}
    with kept_when_interrupted(
        lambda: f"{len(rows)} jobs have ended and are kept: the same sweep goes on from there."
    ):
        for number, row in enumerate(completed(listed, executor, workers=workers, redo=redo), 1):
            rows[str(row["name"])] = row
            tell("sweeping", number, len(listed), f"{row['name']}: {row['status']}")
    found = Swept(tuple(rows[job.name] for job in listed))
    write_file(folder / "sweep.json", write_json(found.to_dict()))
    write_file(folder / "sweep.html", found.html().encode())
    return found


def completed(
    jobs: Sequence[Job],
    executor: ExecutorOption = None,
    *,
    workers: int | None = None,
    redo: bool = False,
) -> Iterator[Row]:
    """The row of every job, as they end; those of whole folders come first.

    :raises UsageError: ``bad-workers``
    :raises UnsupportedError: ``no-fork``
    """
    if not hasattr(os, "fork"):
        raise UnsupportedError(
            "A sweep makes a fork of a process for each job, which this system does not have.",
            slug="no-fork",
            hint="Run it under Linux or macOS.",
        )
    todo = []
    for job in jobs:
        kept = None if redo else kept_row(job.document)
        if kept is None:
            todo.append(job)
        else:
            yield {**kept, "name": job.name}
    if executor is not None:
        yield from _on_executor(todo, executor, redo)
        return
    count = (os.cpu_count() or 1) if workers is None else workers
    if not isinstance(count, int) or count < 1:
        raise UsageError(
            f"workers is {workers!r}.", slug="bad-workers", hint="Give a number of processes."
        )
    pool = ThreadPoolExecutor(count)  # each thread waits for a process
    try:
        yield from _on_executor(todo, pool, redo)
    finally:
        close_hosts()
        pool.shutdown(cancel_futures=True)


def _on_executor(todo: Sequence[Job], executor: ExecutorOption, redo: bool) -> Iterator[Row]:
    """The rows of jobs that an executor runs; a pool that breaks is made anew, where that is known."""
    make = executor if callable(executor) and not hasattr(executor, "submit") else None
    waiting, breaks = list(todo), 0
    while waiting:
        pool = make() if make is not None else executor
        broken: list[Job] = []
        cause = ""
        for job, result in _results(pool, waiting, redo):
            if isinstance(result, BrokenExecutor):
                broken.append(job)
                cause = f"{type(result).__name__}: {result}"
            else:
                breaks = 0
                yield result if isinstance(result, dict) else _lost(job, result)
        if make is not None and isinstance(pool, Executor):
            pool.shutdown(wait=not broken)
        breaks += bool(broken)
        waiting = broken
        if broken and (make is None or breaks >= _MOST_BROKEN):
            yield from (_lost(job, cause) for job in broken)
            return


def _lost(job: Job, cause: object) -> Row:
    """The row of a job whose worker has gone: it is run again by the next sweep."""
    said = cause if isinstance(cause, str) else f"{type(cause).__name__}: {cause}"
    text = f"the executor lost it ({' '.join(said.split())[:500]}): sweep again"
    return {"name": job.name, "seconds": 0.0, **failed("lost", text, slug="job-lost")}


def _results(pool: Any, jobs: Sequence[Job], redo: bool) -> Iterator[tuple[Job, object]]:
    """Each job with its row, or with what its future raised."""
    waiting: dict[Any, Job] = {}
    unsent = collections.deque(jobs)
    while unsent:
        try:
            waiting[pool.submit(run_job, unsent[0].document, redo)] = unsent[0]
        except BrokenExecutor as error:
            yield from ((job, error) for job in unsent)
            break
        unsent.popleft()
    try:
        while waiting:
            for future in _ended(list(waiting)):
                yield waiting.pop(future), _result(future)
    finally:
        for future in waiting:  # a future that runs is not cancelled
            future.cancel()


def _ended(futures: list[Any]) -> list[Any]:
    """Those of some futures that have ended, once there is one."""
    if all(isinstance(future, Future) for future in futures):
        return list(wait_for(futures, return_when=FIRST_COMPLETED).done)
    while True:
        found = [future for future in futures if future.done()]
        if found:
            return found
        time.sleep(_LOOK)


def _result(future: Any) -> object:
    try:
        return future.result()
    except Exception as error:
        return error
