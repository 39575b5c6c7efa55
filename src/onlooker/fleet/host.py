"""A process that runs jobs, each in a fork of its own: ``python -m onlooker.fleet.host``.

A job is a line of JSON on its standard input, and its row a line on its standard output. The module
of a function is imported here, once, so that a fork begins with torch in memory; nothing is computed
here. What ends in a fork ends there: the host says how, and takes the next job. It ends itself, and
its fork with it, when its standard input does: whoever asked has gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..core.errors import OnlookerError
from ..model_source.user_function import function_named
from .job import failed

__all__ = ["LOG", "PATIENCE", "main"]

#: what a job prints, in its folder
LOG = "log.txt"
#: a job that waits, as for a lock, may take so many times its limit on the clock
PATIENCE = 30
#: seconds of the processor between the signal that ends a job and the one that nothing survives
_GRACE = 5
#: seconds between two looks at a job that is silent, and those that a job has to end after its row
_LOOK, _END = 1.0, 2.0
_MOST_TEXT = 2000
_INPUT = 0


def main() -> int:
    """Runs jobs until the standard input ends."""
    answers = os.dup(1)
    os.dup2(2, 1)  # what an import prints is no row
    functions: dict[str, Callable[..., Any]] = {}
    for line in _lines(_INPUT):
        job = json.loads(line)
        with contextlib.suppress(OSError):  # another machine may lack the folder
            os.chdir(job["directory"])
        name = job["run"]
        if name not in functions:
            with contextlib.suppress(Exception):  # the fork tries again, and says what is wrong
                functions[name] = function_named(name)
        row = _row_of(job, functions.get(name), answers)
        os.write(answers, json.dumps(row).encode() + b"\n")
    return 0


def _lines(handle: int) -> Iterator[bytes]:
    """The lines of a file as they come; nothing is read ahead that :mod:`select` would miss."""
    rest = b""
    while chunk := os.read(handle, 1 << 16):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines


def _row_of(
    job: dict[str, Any], function: Callable[..., Any] | None, answers: int
) -> dict[str, Any]:
    """The row of a job, which a fork computes."""
    sys.stdout.flush()
    sys.stderr.flush()
    rows, of_fork = os.pipe()
    lifeline, of_host = os.pipe()
    begin = time.monotonic()
    pid = os.fork()
    if pid == 0:
        for handle in (rows, of_host, answers):
            os.close(handle)
        _run(job, function, of_fork, lifeline)
    os.close(of_fork)
    os.close(lifeline)
    try:
        row = _answer(job, pid, rows)
    finally:
        os.close(rows)
        os.close(of_host)
    return {"seconds": round(time.monotonic() - begin, 1), **row}


def _answer(job: dict[str, Any], pid: int, rows: int) -> dict[str, Any]:
    """Returns the message of the fork; where it ended without an answer, how it ended, and in what."""
    limit = job["seconds"]
    end = None if limit is None else time.monotonic() + PATIENCE * limit
    rest, noted = b"", dict[str, Any]()
    while end is None or time.monotonic() < end:
        ready = select.select([rows, _INPUT], [], [], _LOOK)[0]
        if _INPUT in ready:  # one job at a time: this is the end of the input
            _kill(pid)
            os._exit(1)
        gone = os.waitpid(pid, os.WNOHANG) if not ready else (0, 0)
        chunk = os.read(rows, 1 << 16) if rows in ready else b""
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            final, values = json.loads(line)
            if final:
                _reap(pid, _END)
                return dict(values)
            noted = values
        if gone[0] or (ready and not chunk):
            status = gone[1] if gone[0] else _reap(pid, _END)
            return {**noted, **_death(noted, status, limit)}
    _kill(pid)
    _reap(pid, _END)
    waited = f"more than {PATIENCE * (limit or 0):g} seconds on the clock, in {_stage(noted)}"
    return {**noted, **failed("timeout", waited, slug="job-timeout")}


def _stage(noted: dict[str, Any]) -> str:
    return str(noted.get("stage", "its beginning"))


def _death(noted: dict[str, Any], status: int, limit: float | None) -> dict[str, Any]:
    """Returns a sentence about a fork that ended without a row."""
    code, stage = os.waitstatus_to_exitcode(status), _stage(noted)
    if limit is not None and code == -signal.SIGXCPU:
        text = f"more than {limit:g} seconds of the processor, in {stage}"
        return failed("timeout", text, slug="job-timeout")
    text = f"the process died in {stage} (exit code {code})"
    return failed("died", text, slug="job-died")


def _reap(pid: int, seconds: float) -> int:
    """Waits until a fork has ended, and ends it and all that it started after some seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            _kill(pid)  # what it started may be left
            return status
        time.sleep(0.005)
    _kill(pid)
    return os.waitpid(pid, 0)[1]


def _kill(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGKILL)


# ------------------------------------------------------------------------------ in the fork


def _run(
    job: dict[str, Any], function: Callable[..., Any] | None, rows: int, lifeline: int
) -> None:
    """Runs a job, sends its row, and ends this process."""
    os.setsid()
    threading.Thread(target=_end_with_host, args=(lifeline,), daemon=True).start()
    folder = Path(job["folder"])
    log = os.open(folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    nowhere = os.open(os.devnull, os.O_RDONLY)
    for handle, standard in ((nowhere, 0), (log, 1), (log, 2)):
        os.dup2(handle, standard)

    def send(final: bool, values: dict[str, Any]) -> None:
        os.write(rows, json.dumps([final, values], allow_nan=False).encode() + b"\n")

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        tempfile.tempdir = scratch
        try:
            _limit(job["seconds"], job["memory"])
            function = function_named(job["run"]) if function is None else function
            row = function(folder, lambda values: send(False, values), **job["arguments"])
            send(True, {"status": "ok", **row})
        except BaseException as error:
            traceback.print_exc()
            send(True, _raised(error))
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)


def _end_with_host(lifeline: int) -> None:
    """Ends this process, and all that it started, when the host has gone."""
    with contextlib.suppress(OSError):
        os.read(lifeline, 1)
    os.killpg(0, signal.SIGKILL)


def _limit(seconds: float | None, memory: float | None) -> None:
    import resource

    if memory is not None:
        size = int(memory * 1024**3)
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
    if seconds is not None:
        whole = max(1, round(seconds))
        resource.setrlimit(resource.RLIMIT_CPU, (whole, whole + _GRACE))


def _raised(error: BaseException) -> dict[str, Any]:
    """The row of a job whose function raised."""
    text = " ".join(f"{type(error).__name__}: {error}".split())[:_MOST_TEXT]
    if isinstance(error, OnlookerError):
        text = f"{error.message} {error.hint}".strip()[:_MOST_TEXT]
        return {"status": "error", "message": text, "slug": error.slug}
    if _is_out_of_memory(error):
        return failed("memory", text, slug="job-memory")
    return failed("crash", text, slug="job-crash")


def _is_out_of_memory(error: BaseException) -> bool:
    if "torch" not in sys.modules:  # it is no error of torch, whose import takes seconds
        return isinstance(error, MemoryError)
    from ..lab.memory import is_out_of_memory

    return is_out_of_memory(error)


if __name__ == "__main__":
    sys.exit(main())
